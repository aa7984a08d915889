/* What LINEAR_GLU_FWD leaves in pre: LinearGluFwd.slope. */
#ifndef DEV_GLU_H
#define DEV_GLU_H

typedef enum {
    GLU_PRE,   /* [gate | up] */
    GLU_SLOPE, /* [act'(gate) * up | act(gate)] */
    GLU_UNREAD /* anything: nobody reads pre. A teacher or an evaluation has no backward half */
} GluKeep;

#endif
