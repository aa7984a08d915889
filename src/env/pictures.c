#include "env/pictures.h"

#include "base/err.h"
#include "env/draw.h"

static const DrawColor paper = { 250, 250, 247 }, ink = { 40, 42, 54 }, wood = { 202, 152, 101 };
static const DrawColor blue = { 70, 120, 200 }, red = { 204, 77, 77 }, green = { 60, 160, 90 };
static const DrawColor gold = { 230, 180, 40 }, grey = { 190, 190, 190 };

static Draw begin(uint8_t *rgb)
{
    Draw d = { rgb, PICTURE_WIDTH, PICTURE_HEIGHT };
    draw_fill(&d, paper);
    return d;
}

void picture_cartpole(const CartPole *s, uint8_t *rgb)
{
    const double scale = PICTURE_WIDTH / (2 * CARTPOLE_X_LIMIT), y = 120, pole = scale;
    Draw         d = begin(rgb);
    double       x = PICTURE_WIDTH / 2.0 + s->x * scale;
    draw_rect(&d, 0, y + 8, PICTURE_WIDTH, y + 10, ink);
    draw_rect(&d, x - 14, y - 8, x + 14, y + 8, ink);
    draw_line(&d, x, y - 4, x + pole * sin(s->theta), y - 4 - pole * cos(s->theta), 6, wood);
    draw_disc(&d, x, y - 4, 3, blue);
}

void picture_acrobot(const Acrobot *s, uint8_t *rgb)
{
    const double scale = PICTURE_HEIGHT / 4.4, x0 = PICTURE_WIDTH / 2.0, y0 = PICTURE_HEIGHT / 2.0;
    Draw         d  = begin(rgb);
    double       x1 = x0 + scale * sin(s->theta1), y1 = y0 + scale * cos(s->theta1);
    double       both = s->theta1 + s->theta2;
    draw_rect(&d, 0, y0 - scale - 1, PICTURE_WIDTH, y0 - scale, grey);
    draw_line(&d, x0, y0, x1, y1, 7, blue);
    draw_line(&d, x1, y1, x1 + scale * sin(both), y1 + scale * cos(both), 7, green);
    draw_disc(&d, x0, y0, 4, gold);
    draw_disc(&d, x1, y1, 4, gold);
}

static double hill(double x) { return PICTURE_HEIGHT - 20 - 100 * (sin(3 * x) * 0.45 + 0.55); }

static void mountain(const MountainCar *s, double goal, uint8_t *rgb)
{
    const double scale = PICTURE_WIDTH / (MOUNTAINCAR_MAX - MOUNTAINCAR_MIN);
    Draw         d     = begin(rgb);
    for (int i = 0; i < PICTURE_WIDTH; i++)
        draw_rect(&d, i, hill(MOUNTAINCAR_MIN + i / scale), i + 1, PICTURE_HEIGHT, grey);
    double flag = (goal - MOUNTAINCAR_MIN) * scale, x = (s->position - MOUNTAINCAR_MIN) * scale;
    draw_rect(&d, flag, hill(goal) - 24, flag + 2, hill(goal), ink);
    draw_rect(&d, flag + 2, hill(goal) - 24, flag + 14, hill(goal) - 16, gold);
    draw_disc(&d, x, hill(s->position) - 7, 7, red);
}

void picture_mountaincar(const MountainCar *s, uint8_t *rgb) { mountain(s, 0.5, rgb); }

void picture_mountaincarc(const MountainCarC *s, uint8_t *rgb) { mountain(s, 0.45, rgb); }

void picture_pendulum(const Pendulum *s, uint8_t *rgb)
{
    const double x0 = PICTURE_WIDTH / 2.0, y0 = PICTURE_HEIGHT / 2.0, length = 64;
    Draw         d = begin(rgb);
    draw_line(&d, x0, y0, x0 - length * sin(s->theta), y0 - length * cos(s->theta), 12, red);
    draw_disc(&d, x0, y0, 4, ink);
    draw_rect(&d, x0, PICTURE_HEIGHT - 8, x0 + 30 * s->torque, PICTURE_HEIGHT - 3, blue);
    draw_rect(&d, x0 + 30 * s->torque, PICTURE_HEIGHT - 8, x0, PICTURE_HEIGHT - 3, blue);
}

void picture_tmaze(const TMaze *s, uint8_t *rgb)
{
    Draw   d    = begin(rgb);
    double cell = (PICTURE_WIDTH - 40.0) / (s->length + 1), y = PICTURE_HEIGHT / 2.0,
           half = MIN(cell, 24) / 2;
    double end  = 20 + cell * s->length;
    draw_rect(&d, 20, y - half, end + cell, y + half, grey);
    draw_rect(&d, end, y - 60, end + cell, y + 60, grey);
    draw_rect(&d, end, s->sign < 0 ? y - 60 : y + 60 - 12, end + cell, s->sign < 0 ? y - 60 + 12 : y + 60,
              green);
    if (s->position == 0) draw_rect(&d, 2, s->sign < 0 ? y - 14 : y, 14, s->sign < 0 ? y : y + 14, gold);
    draw_disc(&d, 20 + cell * (s->position + 0.5), y, MAX(half - 1, 2), blue);
}

void picture_meteor(const Meteor *s, uint8_t *rgb)
{
    const double cell = PICTURE_HEIGHT / (double)METEOR_SIZE, left = (PICTURE_WIDTH - PICTURE_HEIGHT) / 2.0;
    Draw         d = begin(rgb);
    draw_rect(&d, left, 0, left + PICTURE_HEIGHT, PICTURE_HEIGHT, ink);
    for (int i = 0; i < METEOR_CELLS; i++) {
        double x = left + (i % METEOR_SIZE + 0.5) * cell, y = (i / METEOR_SIZE + 0.5) * cell;
        if (s->cell[i] == METEOR_GEM) draw_disc(&d, x, y, cell * 0.3, gold);
        if (s->cell[i] == METEOR_ROCK) draw_disc(&d, x, y, cell * 0.45, red);
    }
    double x = left + s->column * cell, y = PICTURE_HEIGHT - cell;
    draw_rect(&d, x + 2, y + 4, x + cell - 2, PICTURE_HEIGHT, blue);
}

/* A rectangle of cells, seen by bus k: a quarter turn for each number. along, across: from cell to cell. */
static void lane_rect(const Draw *d, int k, const double along[2], const double across[2], DrawColor c)
{
    const double cell = PICTURE_HEIGHT / (double)CROSSING_LANE, left = (PICTURE_WIDTH - PICTURE_HEIGHT) / 2.0;
    double       x[2], y[2];
    for (int i = 0; i < 2; i++) {
        double u = along[i], v = across[i], n = CROSSING_LANE;
        x[i] = k == 0 ? v : k == 1 ? u : k == 2 ? n - v : n - u;
        y[i] = k == 0 ? u : k == 1 ? n - v : k == 2 ? n - u : v;
    }
    draw_rect(d, left + cell * MIN(x[0], x[1]), cell * MIN(y[0], y[1]), left + cell * MAX(x[0], x[1]),
              cell * MAX(y[0], y[1]), c);
}

void picture_crossing(const Crossing *s, uint8_t *rgb)
{
    const DrawColor of_bus[CROSSING_BUSES] = { blue, green, gold, wood };
    const double    lane[2]                = { CROSSING_FIRST, CROSSING_FIRST + 1 },
                 inner[2]                  = { CROSSING_FIRST + 0.15, CROSSING_FIRST + 0.85 };
    Draw d                                 = begin(rgb);
    for (int k = 0; k < CROSSING_BUSES; k++) lane_rect(&d, k, (double[]){ 0, CROSSING_LANE }, lane, grey);
    for (int k = 0; k < CROSSING_BUSES; k++) {
        double front = s->front[k];
        int    gone  = s->front[k] == CROSSING_CRASHED; /* a red mark where its lane begins */
        if (gone) lane_rect(&d, k, (double[]){ 0, 0.5 }, lane, red);
        if (gone || s->front[k] < 0) continue;
        lane_rect(&d, k, (double[]){ MAX(front - 0.9, 0), front + 0.9 }, inner, of_bus[k]);
        lane_rect(&d, k, (double[]){ front + 0.6, front + 0.8 }, inner, ink);
    }
}
