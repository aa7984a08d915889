/* Pictures of the built-in environments. Each fills PICTURE_WIDTH x PICTURE_HEIGHT RGB bytes. */
#ifndef ENV_PICTURES_H
#define ENV_PICTURES_H

#include "env/acrobot.h"
#include "env/cartpole.h"
#include "env/crossing.h"
#include "env/meteor.h"
#include "env/mountaincar.h"
#include "env/pendulum.h"
#include "env/tmaze.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PICTURE_WIDTH = 240, PICTURE_HEIGHT = 160 };

void picture_cartpole(const CartPole *s, uint8_t *rgb);
void picture_acrobot(const Acrobot *s, uint8_t *rgb);
void picture_mountaincar(const MountainCar *s, uint8_t *rgb);
void picture_mountaincarc(const MountainCarC *s, uint8_t *rgb);
void picture_pendulum(const Pendulum *s, uint8_t *rgb);
void picture_tmaze(const TMaze *s, uint8_t *rgb);
void picture_meteor(const Meteor *s, uint8_t *rgb);
void picture_crossing(const Crossing *s, uint8_t *rgb);

#ifdef __cplusplus
}
#endif
#endif
