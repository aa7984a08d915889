#include "env/mujoco.h"

#include "base/err.h"

#if __has_include(<mujoco/mujoco.h>)

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "env/draw.h"
#include "env/envfn.h"
#include "env/mujoco_task.h"

#include <dlfcn.h>
#include <glob.h>
#include <math.h>
#include <mujoco/mujoco.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the engine ---------------------------------------------------------------------------------------- */

#define ENGINE_LIST(X)                                                                                       \
    X(mj_version)                                                                                            \
    X(mj_loadXML)                                                                                            \
    X(mj_deleteModel)                                                                                        \
    X(mj_makeData)                                                                                           \
    X(mj_deleteData) X(mj_resetData) X(mj_kinematics) X(mj_forward) X(mj_step) X(mj_rnePostConstraint)

typedef struct {
    void *handle;
#define FIELD(name) __typeof__(&name) name;
    ENGINE_LIST(FIELD)
#undef FIELD
} Engine;

/* MuJoCo's own handlers wait for a key or write files into the current folder. abort() leads to the guard. */
static void on_engine_error(const char *text)
{
    fprintf(stderr, "brim: MuJoCo: %s\n", text);
    abort();
}

static void on_engine_warning(const char *text) {}

static int engine_open(Engine *g, char *error, size_t n_error)
{
    char name[40];
    snprintf(name, sizeof name, "libmujoco.so.%d.%d.%d", mjVERSION_HEADER / 100, mjVERSION_HEADER / 10 % 10,
             mjVERSION_HEADER % 10);
    g->handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!g->handle) g->handle = dlopen("libmujoco.so", RTLD_NOW | RTLD_LOCAL);
    if (!g->handle) {
        snprintf(error, n_error, "MuJoCo is not installed: %s not found (Debian: libmujoco-dev)", name);
        return -1;
    }
#define LOOK_UP(fn) *(void **)&g->fn = dlsym(g->handle, #fn);
    ENGINE_LIST(LOOK_UP)
#undef LOOK_UP
#define IS_THERE(fn) &&g->fn
    int complete = 1 ENGINE_LIST(IS_THERE);
#undef IS_THERE
    if (!complete || g->mj_version() != mjVERSION_HEADER) {
        snprintf(error, n_error, "MuJoCo %d is installed, but Brim was built for %d",
                 g->mj_version ? g->mj_version() : 0, mjVERSION_HEADER);
        dlclose(g->handle);
        return -1;
    }
    void (**on_error)(const char *)   = dlsym(g->handle, "mju_user_error");
    void (**on_warning)(const char *) = dlsym(g->handle, "mju_user_warning");
    if (on_error) *on_error = on_engine_error;
    if (on_warning) *on_warning = on_engine_warning;
    return 0;
}

/* ---- models: one per file and process, however many environments use it -------------------------------- */

typedef struct Model {
    char          path[512];
    mjModel      *m;
    int           n_user;
    struct Model *next;
} Model;

/* A compiled model has megabytes of textures, and 1024 environments would each load their own. create() has
 * no argument that all environments of a file share, so the list is here. It is only touched under the
 * lock. */
static pthread_mutex_t model_lock = PTHREAD_MUTEX_INITIALIZER;
static Model          *model_list;

static Model *model_take(const Engine *g, const char *path, char *error, size_t n_error)
{
    char why[300] = "";
    pthread_mutex_lock(&model_lock);
    Model *x = model_list;
    while (x && strcmp(x->path, path) != 0) x = x->next;
    if (!x) {
        x = mem_zeroed(1, sizeof *x);
        if (!x) snprintf(error, n_error, "no memory");
    }
    if (x && !x->m) {
        str_copy(x->path, sizeof x->path, path);
        x->m = g->mj_loadXML(path, NULL, why, sizeof why);
        if (x->m) {
            x->next    = model_list;
            model_list = x;
        } else {
            snprintf(error, n_error, "%s: %s", path, why);
            free(x);
            x = NULL;
        }
    }
    if (x) x->n_user++;
    pthread_mutex_unlock(&model_lock);
    return x;
}

static void model_give(const Engine *g, Model *x)
{
    pthread_mutex_lock(&model_lock);
    if (--x->n_user == 0) {
        Model **at = &model_list;
        while (*at != x) at = &(*at)->next;
        *at = x->next;
        g->mj_deleteModel(x->m);
        free(x);
    }
    pthread_mutex_unlock(&model_lock);
}

/* ---- the environment ----------------------------------------------------------------------------------- */

typedef struct {
    Engine     engine;
    Model     *model;
    mjData    *d;
    MujocoTask task;
    int        needs_forces; /* cfrc_ext is only right after mj_rnePostConstraint() */
    double     before;       /* measure() after the last step */
    mjtNum     target[3];    /* of the episode, where the task has one */
    mjtNum     way[3];       /* to it, from the last body */
    int64_t    n_warning;    /* of an unstable state, up to now */
    char       obs_text[200];
    EnvBlock   block[ENV_MAX_OBS];
    int        field[ENV_MAX_OBS];
    float     *low, *high;
    EnvInfo    info;
} Mujoco;

/* Seconds of a step. */
static double step_s(const Mujoco *e) { return e->model->m->opt.timestep * e->task.frame_skip; }

enum { F_QPOS, F_QVEL, F_CINERT, F_CVEL, F_QFRC, F_CFRC, F_TARGET };

static const char *const field_name[] = { "qpos",          "qvel",     "cinert", "cvel",
                                          "qfrc_actuator", "cfrc_ext", "target" };

static const mjtNum *field_at(const Mujoco *e, int field, int64_t *n)
{
    const mjModel *m = e->model->m;
    const mjData  *d = e->d;
    switch (field) {
    case F_QPOS: *n = m->nq - e->task.skip_qpos; return d->qpos + e->task.skip_qpos;
    case F_QVEL: *n = m->nv; return d->qvel;
    case F_CINERT: *n = 10 * (int64_t)m->nbody; return d->cinert;
    case F_CVEL: *n = 6 * (int64_t)m->nbody; return d->cvel;
    case F_QFRC: *n = m->nv; return d->qfrc_actuator;
    case F_TARGET: *n = 3; return e->way;
    default: *n = 6 * (int64_t)m->nbody; return d->cfrc_ext;
    }
}

static const mjtNum *last_body(const Mujoco *e) { return e->d->xipos + 3 * (e->model->m->nbody - 1); }

static void observe(Mujoco *e, const EnvIo *io)
{
    for (int i = 0; i < 3; i++) e->way[i] = e->target[i] - last_body(e)[i];
    for (int k = 0; k < e->info.n_obs; k++) {
        int64_t       n;
        const mjtNum *x   = field_at(e, e->field[k], &n);
        float        *out = io->obs[k];
        for (int64_t i = 0; i < n; i++) out[i] = (float)x[i];
    }
}

static int set_blocks(Mujoco *e, char *error, size_t n_error)
{
    char *save = NULL;
    for (char *word = strtok_r(e->obs_text, "+", &save); word; word = strtok_r(NULL, "+", &save)) {
        int f = 0, k = e->info.n_obs;
        while (f < ARRAY_LEN(field_name) && strcmp(word, field_name[f]) != 0) f++;
        if (f == ARRAY_LEN(field_name) || k == ENV_MAX_OBS) {
            snprintf(error, n_error,
                     "obs: '%s' is not one of qpos qvel cinert cvel qfrc_actuator cfrc_ext target", word);
            return -1;
        }
        if (f == F_TARGET && !e->task.has_target) {
            snprintf(error, n_error, "obs: the task has no target (task=reach has one)");
            return -1;
        }
        int64_t n;
        field_at(e, f, &n);
        e->block[k] = (EnvBlock){ .name  = field_name[f],
                                  .type  = ENV_F32,
                                  .n_dim = 1,
                                  .shape = { n },
                                  .low   = -INFINITY,
                                  .high  = INFINITY };
        e->field[k] = f;
        if (f == F_CFRC) e->needs_forces = 1;
        e->info.n_obs++;
    }
    return 0;
}

static int set_actions(Mujoco *e, char *error, size_t n_error)
{
    const mjModel *m = e->model->m;
    e->low           = mem_zeroed((size_t)m->nu, sizeof(float));
    e->high          = mem_zeroed((size_t)m->nu, sizeof(float));
    if (!e->low || !e->high) {
        snprintf(error, n_error, "no memory");
        return -1;
    }
    for (int i = 0; i < m->nu; i++) {
        e->low[i]  = m->actuator_ctrllimited[i] ? (float)m->actuator_ctrlrange[2 * i] : -1.0f;
        e->high[i] = m->actuator_ctrllimited[i] ? (float)m->actuator_ctrlrange[2 * i + 1] : 1.0f;
    }
    e->info.act_kind = ENV_CONTINUOUS;
    e->info.n_act    = m->nu;
    e->info.act_low  = e->low;
    e->info.act_high = e->high;
    return 0;
}

/* As given, else in the first of the folders of Debian's models that has it. */
static void find_model(const char *name, char *path, size_t n)
{
    glob_t found        = { 0 };
    char   pattern[512] = "";
    str_copy(path, n, name);
    if (file_kind(name) == FILE_REGULAR || strpbrk(name, "/*?[\\")) return;
    str_append(pattern, sizeof pattern, "/usr/share/mujoco/model/*/%s", name);
    if (glob(pattern, 0, NULL, &found) == 0) str_copy(path, n, found.gl_pathv[0]);
    globfree(&found);
}

static void destroy(void *env)
{
    Mujoco *e = env;
    if (e->d) e->engine.mj_deleteData(e->d);
    if (e->model) model_give(&e->engine, e->model);
    free(e->low);
    free(e->high);
    free(e); /* the engine stays open: another environment may be inside */
}

typedef struct {
    char    model[512], task[300];
    int64_t frame_skip;
} Options;

static int read_options(Options *o, Mujoco *e, const char *const *option, int n, char *error, size_t n_error)
{
    *o = (Options){ 0 };
    for (int i = 0; i < n; i++) {
        const char *v = strchr(option[i], '=') ? strchr(option[i], '=') + 1 : "", *wanted = "a shorter text";
        int         ok = 1;
        if (str_starts_with(option[i], "model="))
            find_model(v, o->model, sizeof o->model);
        else if (str_starts_with(option[i], "task="))
            ok = str_copy(o->task, sizeof o->task, v) >= 0;
        else if (str_starts_with(option[i], "obs="))
            ok = str_copy(e->obs_text, sizeof e->obs_text, v) >= 0;
        else if (str_starts_with(option[i], "frame_skip=")) {
            wanted = "a whole number from 1 to 10000";
            ok     = str_parse_int(v, &o->frame_skip) >= 0 && o->frame_skip >= 1 && o->frame_skip <= 10000;
        } else {
            snprintf(error, n_error, "%s: no such option (task=, obs=, frame_skip=)", option[i]);
            return -1;
        }
        if (ok) continue;
        snprintf(error, n_error, "%s: expected %s", option[i], wanted);
        return -1;
    }
    if (file_kind(o->model) != FILE_REGULAR) {
        snprintf(error, n_error, "%s: no such file (Debian's models: libmujoco-samples)", o->model);
        return -1;
    }
    if (!o->task[0])
        str_copy(o->task, sizeof o->task,
                 strcmp(file_name_of(o->model), "humanoid.xml") == 0 ? "humanoid" : "none");
    return 0;
}

/* Targets are drawn for hinges and slides alone: a free body can be anywhere. */
static int check_target(const mjModel *m, char *error, size_t n_error)
{
    for (int i = 0; i < m->njnt; i++) {
        if (m->jnt_type[i] == mjJNT_HINGE || m->jnt_type[i] == mjJNT_SLIDE) continue;
        snprintf(error, n_error, "the task has a target, so joints must be hinges or slides: joint %d is not",
                 i);
        return -1;
    }
    return 0;
}

/* The model must suit the task. */
static int open_model(Mujoco *e, const char *path, char *error, size_t n_error)
{
    e->model = model_take(&e->engine, path, error, n_error);
    if (!e->model) return -1;
    const mjModel *m = e->model->m;
    e->d             = e->engine.mj_makeData(m);
    if (!e->d) {
        snprintf(error, n_error, "no memory");
        return -1;
    }
    if (m->nu < 1) {
        snprintf(error, n_error, "%s: the model has no actuators", path);
        return -1;
    }
    if (e->task.skip_qpos >= m->nq) {
        snprintf(error, n_error, "%s: the task leaves out %d positions, and the model has %d", path,
                 e->task.skip_qpos, (int)m->nq);
        return -1;
    }
    return e->task.has_target ? check_target(m, error, n_error) : 0;
}

static int set_up(Mujoco *e, const char *const *option, int n, char *error, size_t n_error)
{
    Options o;
    TRY(engine_open(&e->engine, error, n_error));
    TRY(read_options(&o, e, option, n, error, n_error));
    TRY(mujoco_task_take(&e->task, o.task, error, n_error));
    TRY(open_model(e, o.model, error, n_error));
    if (!e->obs_text[0])
        str_copy(e->obs_text, sizeof e->obs_text, e->task.has_target ? "qpos+qvel+target" : "qpos+qvel");
    if (o.frame_skip) e->task.frame_skip = (int)o.frame_skip;
    if (e->task.frame_skip < 1) e->task.frame_skip = 1;
    double dt = step_s(e);
    e->info   = (EnvInfo){ .abi        = ENV_ABI,
                           .size_bytes = sizeof e->info,
                           .name       = "mujoco",
                           .about      = "a MuJoCo model",
                           .obs        = e->block,
                           .max_steps  = e->task.max_steps,
                           .fps        = dt > 0 ? (int)MAX(1, MIN(50, lround(1 / dt))) : 30 };
    TRY(set_blocks(e, error, n_error));
    return set_actions(e, error, n_error);
}

static int create(void **env, const char *const *option, int n, char *error, size_t n_error)
{
    Mujoco *e = mem_zeroed(1, sizeof *e);
    if (!e) {
        snprintf(error, n_error, "no memory");
        return -1;
    }
    if (set_up(e, option, n, error, n_error) < 0) {
        destroy(e);
        return -1;
    }
    *env = e;
    return 0;
}

static const EnvInfo *info(void *env) { return &((Mujoco *)env)->info; }

static int64_t count_warnings(const mjData *d)
{
    return (int64_t)d->warning[mjWARN_BADQPOS].number + d->warning[mjWARN_BADQVEL].number +
           d->warning[mjWARN_BADQACC].number;
}

/* Where the last body is at joints drawn from their ranges: a turn where a hinge has none, 2 m where a slide
 * has none. */
static void draw_target(Mujoco *e, EnvRng *r)
{
    const mjModel *m = e->model->m;
    e->engine.mj_resetData(m, e->d);
    for (int i = 0; i < m->njnt; i++) {
        double most = m->jnt_type[i] == mjJNT_HINGE ? ENV_PI : 1, low = -most, high = most;
        if (m->jnt_limited[i]) {
            low  = m->jnt_range[2 * i];
            high = m->jnt_range[2 * i + 1];
        }
        e->d->qpos[m->jnt_qposadr[i]] = envfn_uniform(r, low, high);
    }
    e->engine.mj_kinematics(m, e->d);
    memcpy(e->target, last_body(e), sizeof e->target);
}

static int reset(void *env, uint64_t seed, const EnvIo *io)
{
    Mujoco        *e = env;
    const mjModel *m = e->model->m;
    EnvRng         r = envfn_rng(seed);
    double         s = e->task.reset_noise;
    if (e->task.has_target) draw_target(e, &r);
    e->engine.mj_resetData(m, e->d);
    for (int i = 0; i < m->nq; i++) e->d->qpos[i] += envfn_uniform(&r, -s, s);
    for (int i = 0; i < m->nv; i++) e->d->qvel[i] += envfn_uniform(&r, -s, s);
    e->engine.mj_forward(m, e->d);
    if (e->needs_forces) e->engine.mj_rnePostConstraint(m, e->d);
    e->before    = e->task.measure ? e->task.measure(m, e->d) : 0;
    e->n_warning = count_warnings(e->d);
    observe(e, io);
    return 0;
}

static int judge(const Mujoco *e, float *reward)
{
    if (e->task.judge_step)
        return e->task.judge_step(
            &(MujocoStep){ e->model->m, e->d, e->before, step_s(e), e->task.has_target ? e->target : NULL },
            reward);
    return e->task.judge ? e->task.judge(e->model->m, e->d, e->before, reward) : ENV_GOES_ON;
}

static int step(void *env, const EnvIo *io)
{
    Mujoco        *e = env;
    const mjModel *m = e->model->m;
    for (int i = 0; i < m->nu; i++) e->d->ctrl[i] = io->act_f[i];
    for (int k = 0; k < e->task.frame_skip; k++) e->engine.mj_step(m, e->d);
    if (e->needs_forces) e->engine.mj_rnePostConstraint(m, e->d);
    *io->reward = 0;
    int end     = judge(e, io->reward);
    if (count_warnings(e->d) != e->n_warning) end |= ENV_TERMINATED;
    e->before = e->task.measure ? e->task.measure(m, e->d) : 0;
    observe(e, io);
    return end;
}

/* ---- state: what mj_step() reads, and no more. All but the first two are arrays of mjtNum. ------------- */

static int64_t move_state(Mujoco *e, char *buf, int is_save)
{
    const mjModel *m  = e->model->m;
    mjData        *d  = e->d;
    int64_t        at = 0;
    struct {
        void *p;
        int   n;
    } part[] = { { &e->before, 1 },
                 { &d->time, 1 },
                 { d->qpos, m->nq },
                 { d->qvel, m->nv },
                 { d->act, m->na },
                 { d->ctrl, m->nu },
                 { d->qacc_warmstart, m->nv },
                 { d->mocap_pos, 3 * m->nmocap },
                 { d->mocap_quat, 4 * m->nmocap },
                 { d->userdata, m->nuserdata },
                 { d->qfrc_applied, m->nv },
                 { d->xfrc_applied, 6 * m->nbody },
                 { e->target, e->task.has_target ? 3 : 0 } };
    for (int i = 0; i < ARRAY_LEN(part); i++) {
        size_t bytes = (size_t)part[i].n * sizeof(mjtNum);
        if (buf && bytes > 0) memcpy(is_save ? buf + at : part[i].p, is_save ? part[i].p : buf + at, bytes);
        at += (int64_t)bytes;
    }
    return at;
}

static int64_t save(void *env, void *buf, int64_t cap)
{
    if (buf && cap < move_state(env, NULL, 1)) return -1;
    return move_state(env, buf, 1);
}

static int load(void *env, const void *buf, int64_t n)
{
    Mujoco *e = env;
    if (n != move_state(e, NULL, 0)) return -1;
    e->engine.mj_resetData(e->model->m, e->d);
    move_state(e, (char *)buf, 0); /* only read */
    e->n_warning = count_warnings(e->d);
    return 0;
}

/* ---- picture: capsules, spheres and boxes from the side, following the first body ---------------------- */

static int picture(void *env, uint8_t *rgb, int *width, int *height)
{
    enum { W = 240, H = 240 };
    const Mujoco  *e = env;
    const mjModel *m = e->model->m;
    const mjData  *d = e->d;
    *width           = W;
    *height          = H;
    if (!rgb) return 0;
    Draw   c     = { rgb, W, H };
    double scale = H / 3.0, x0 = m->nbody > 1 ? d->xpos[3] : 0, ground = H * 0.85;
    draw_fill(&c, (DrawColor){ 235, 240, 245 });
    for (int k = -3; k < 4; k++) /* marks on the ground show that it walks */
        draw_rect(&c, W / 2.0 + (floor(x0) + k - x0) * scale, ground,
                  W / 2.0 + (floor(x0) + k - x0) * scale + 3, H, (DrawColor){ 120, 130, 140 });
    draw_rect(&c, 0, ground, W, ground + 2, (DrawColor){ 90, 100, 110 });
    for (int i = 0; i < m->ngeom; i++) {
        if (m->geom_type[i] == mjGEOM_PLANE || m->geom_type[i] == mjGEOM_HFIELD || m->geom_bodyid[i] == 0)
            continue;
        const mjtNum *p = d->geom_xpos + 3 * i, *r = d->geom_xmat + 9 * i, *s = m->geom_size + 3 * i;
        int           is_long = m->geom_type[i] == mjGEOM_CAPSULE || m->geom_type[i] == mjGEOM_CYLINDER;
        double        hx = is_long ? r[2] * s[1] : 0, hz = is_long ? r[8] * s[1] : 0;
        uint8_t       shade = (uint8_t)(150 + 60 * (p[1] < 0));
        draw_line(&c, W / 2.0 + (p[0] - hx - x0) * scale, ground - (p[2] - hz) * scale,
                  W / 2.0 + (p[0] + hx - x0) * scale, ground - (p[2] + hz) * scale, 2 * s[0] * scale,
                  (DrawColor){ shade, (uint8_t)(shade * 3 / 4), (uint8_t)(shade / 2) });
    }
    return 0;
}

static const EnvApi mujoco_api = { ENV_ABI, sizeof(EnvApi), create,  destroy, info, reset,
                                   step,    NULL,           picture, save,    load, NULL };

int mujoco_open(const EnvApi **api)
{
    char   why[200] = "";
    Engine g        = { 0 };
    if (engine_open(&g, why, sizeof why) < 0) return err_user("%s", why);
    *api = &mujoco_api; /* the handle is kept: environments open the same library again */
    return 0;
}

#else

int mujoco_open(const EnvApi **api)
{
    return err_user("this brim was built without MuJoCo's headers (Debian: libmujoco-dev)");
}

#endif
