/* Setup: what every command that runs a model does first: device, plan, programs, memory.
 *
 * After setup_open() the device is sealed: nothing asks it for memory any more. */
#ifndef RUN_SETUP_H
#define RUN_SETUP_H

#include "run/build.h"
#include "run/choose.h"

/* Where the seconds of setup_open() go. */
typedef struct {
    double device, plan, memory, weights;
} SetupTimes;

typedef struct {
    Dev        *dev;
    const char *why; /* why this device */
    DevInfo     info;
    Machine     machine;
    Choice      choice;
    Job        *job;
    SetupTimes  took;
} Setup;

/* parts: JobParts. Weights hold their initial values afterwards. Negative after err_user()/err_set(). */
int setup_open(Setup *s, const Task *task, const Recipe *r, unsigned parts);
/* The same for one of several ranks: each takes a GPU of its own, and all make the same choice. comm is
 * borrowed until setup_close(). NULL: as above. */
int setup_open_ranks(Setup *s, const Task *task, const Recipe *r, unsigned parts, Comm *comm);
/* Device and plan alone: no device memory is taken, no weight made. For looking, not for running. comm as
 * above. */
int  setup_plan(Setup *s, const Task *task, const Recipe *r, unsigned parts, Comm *comm);
void setup_close(Setup *s);
/* What one of `world` ranks has to do of a step: the recipe that its plan is chosen for. Negative after
 * err_user(). */
int setup_share(Recipe *share, const Recipe *r, int world);

/* Device, versions, host: machine.txt. */
void setup_print_machine(const Setup *s, FILE *out);

#endif
