/* Who uses which of the device's marks. */
#ifndef RUN_MARKS_H
#define RUN_MARKS_H

#include "run/step.h"

enum {
    MARK_TRAIN  = 0,                          /* slots of the training feed */
    MARK_VAL    = MARK_TRAIN + FEED_SLOTS,    /* slots of the validation feed */
    MARK_STEP   = MARK_VAL + FEED_SLOTS,      /* ends of steps, STEP_RING */
    MARK_UNTIL  = MARK_STEP + STEP_RING,      /* flags that end loops, UNTIL_LAG + 1 */
    MARK_UNPACK = MARK_UNTIL + UNTIL_LAG + 1, /* the last unpack */
    MARK_USED
};
_Static_assert((int)MARK_USED <= (int)TASK_MARK0, "more marks than a device has");

#endif
