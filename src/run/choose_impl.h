/* What the files of choose share. Not for others. */
#ifndef RUN_CHOOSE_IMPL_H
#define RUN_CHOOSE_IMPL_H

#include "run/choose.h"

/* Fills in c->compute, c->fp8 and c->why. Negative after recipe_blame() if the device lacks what the recipe
 * asks for. */
int choose_precision(Choice *c, const ChooseFor *w);

/* Seconds for the samples of a step, for ranking: a job that only evaluates walks its eval schedule for
 * them. */
double choose_rank_s(const Job *j, const Machine *m);

/* Always negative, after err_user() with one line about the smallest of the candidates; c->refusal has the
 * rest. */
int choose_refuse(Choice *c, const ChooseFor *w, ChooseRoom room);

#endif
