#include "env/envlib.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "env/builtin.h"
#include "env/mujoco.h"

#include <dlfcn.h>
#include <string.h>

int envlib_is_gym(const char *name) { return str_starts_with(name, "gym:"); }

/* Ends in "-v" and a number. */
static int is_gym_id(const char *name)
{
    const char *version = strrchr(name, '-');
    int64_t     n;
    return version && version[1] == 'v' && str_parse_int(version + 2, &n) == 0;
}

static int unknown(const char *name)
{
    StrNearest near = str_nearest_begin(name);
    for (int i = 0; i < builtin_count(); i++) {
        str_nearest_offer(&near, builtin_at(i)->name);
        if (builtin_at(i)->gym) str_nearest_offer(&near, builtin_at(i)->gym);
    }
    if (near.best) return err_user("environment %s: no such environment (did you mean %s?)", name, near.best);
    if (str_ends_with(name, ".xml"))
        return err_user("environment %s: no such environment (did you mean mujoco:%s?)", name, name);
    if (str_ends_with(name, ".py") || strstr(name, ".py:") || is_gym_id(name))
        return err_user("environment %s: no such environment (did you mean gym:%s%s?)", name, name,
                        str_ends_with(name, ".py") ? ":CLASS" : "");
    return err_user(
        "environment %s: no such environment (brim env list shows all; a shared object's name ends in .so)",
        name);
}

static int take_api(EnvLib *l, const EnvApi *api)
{
    if (!api)
        return err_user("%s: needs a newer interface than %u, the newest of this program", l->name, ENV_ABI);
    if (api->abi != ENV_ABI)
        return err_user("%s: has interface %u, but this program has %u", l->name, api->abi, ENV_ABI);
    memset(&l->api, 0, sizeof l->api);
    memcpy(&l->api, api, MIN((size_t)api->size_bytes, sizeof l->api));
    if (!l->api.create || !l->api.destroy || !l->api.info || !l->api.reset || !l->api.step)
        return err_user("%s: one of create, destroy, info, reset, step is missing", l->name);
    if (!l->api.save != !l->api.load)
        return err_user("%s: has one of save and load, but not the other", l->name);
    return 0;
}

static int open_object(EnvLib *l)
{
    char path[512] = "";
    if (file_kind(l->name) != FILE_REGULAR) return err_user("%s: no such file", l->name);
    /* Without a folder dlopen() would look in the system's library folders. */
    str_append(path, sizeof path, "%s%s", strchr(l->name, '/') ? "" : "./", l->name);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return err_user("%s", dlerror());
    /* The detour keeps ISO C from complaining about a data pointer that becomes a function. */
    const EnvApi *(*entry)(uint32_t) = NULL;
    *(void **)&entry                 = dlsym(handle, "brim_env");
    if (!entry) return err_user("%s: exports no brim_env() (see docs/environments.md)", l->name);
    return take_api(l, entry(ENV_ABI));
}

int envlib_open(EnvLib *l, const char *name, const char *const *option, int n_option)
{
    *l = (EnvLib){ 0 };
    if (str_copy(l->name, sizeof l->name, name) < 0) return err_user("environment: the name is too long");
    if (n_option >= ENVLIB_MAX_OPTION)
        return err_user("environment %s: more than %d options", name, ENVLIB_MAX_OPTION - 1);
    for (int i = 0; i < n_option; i++) l->option[l->n_option++] = option[i];
    const Builtin *b = builtin_find(name);
    if (b) {
        l->is_builtin = 1;
        return take_api(l, b->api);
    }
    if (str_starts_with(name, "mujoco:")) {
        const EnvApi *api;
        str_append(l->model, sizeof l->model, "model=%s", name + strlen("mujoco:"));
        l->option[l->n_option++] = l->model;
        TRY(mujoco_open(&api));
        return take_api(l, api);
    }
    if (str_ends_with(name, ".so")) return open_object(l);
    if (envlib_is_gym(name)) return err_user("environment %s: cannot run inside this process", name);
    return unknown(name);
}

int envlib_create(const EnvLib *l, void **env)
{
    char why[400] = "";
    *env          = NULL;
    if (l->api.create(env, l->option, l->n_option, why, sizeof why) >= 0) return 0;
    char line[400];
    return err_user(
        "environment %s: %s", l->name,
        str_quote(line, sizeof line, why[0] ? why : "create failed", strlen(why[0] ? why : "create failed")));
}
