/* Videos: frames stand as a player shows them, whatever turn or mirror the file asks for. The file has three
 * frames of 32 x 16, four quarters in red, green (above), blue and white (below). The command
 *     ffmpeg -f lavfi -i "color=red:s=32x16:r=5:d=0.6,format=rgb24,geq=\
 *         r='if(lt(X,16),if(lt(Y,8),255,0),if(lt(Y,8),0,255))':g='if(lt(X,16),0,255)':\
 *         b='if(lt(X,16),if(lt(Y,8),0,255),if(lt(Y,8),0,255))'" \
 *         -c:v mpeg4 -q:v 2 -fflags +bitexact -flags:v +bitexact tests/golden/quarters.mp4
 * made it; the tests write another matrix into copies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "file/video.h"
#include "case_folder.h"

#include <stdio.h>
#include <string.h>

/* The matrix of a track stands 44 bytes behind its name: two columns of nine big-endian numbers, 16.16. */
enum { MATRIX_AT = 44, ONE = 1 << 16 };

static void put(uint8_t *p, int32_t x)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)((uint32_t)x >> (24 - 8 * i));
}

/* A copy whose pixels (x, y) are to be shown at (ax + cy, bx + dy). */
static void write_turned(const char *path, int a, int b, int c, int d)
{
    uint8_t buf[4096], *at = NULL;
    FILE   *f = fopen("tests/golden/quarters.mp4", "rb");
    assert_non_null(f);
    size_t n = fread(buf, 1, sizeof buf, f);
    fclose(f);
    for (size_t i = 0; i + 100 < n && !at; i++) {
        if (memcmp(buf + i, "tkhd", 4) == 0) at = buf + i + MATRIX_AT;
    }
    assert_non_null(at);
    put(at, a * ONE);
    put(at + 4, b * ONE);
    put(at + 12, c * ONE);
    put(at + 16, d * ONE);
    write_file(path, buf, n);
}

static char colour_at(const VideoFrame *f, int x, int y)
{
    const uint8_t *p   = f->rgb + ((size_t)y * (size_t)f->w + (size_t)x) * 3;
    int            lit = (p[0] > 128) | (p[1] > 128) << 1 | (p[2] > 128) << 2;
    return "?rg?b??w"[lit];
}

/* Both columns of the matrix, and the quarters that are seen: above, then below. */
typedef struct {
    int  a, b, c, d;
    char seen[5];
} Turn;

static const Turn turns[] = {
    { 1, 0, 0, 1, "rgbw" },   /* as it is */
    { 0, 1, -1, 0, "brwg" },  /* a quarter clockwise: a phone held upright */
    { -1, 0, 0, -1, "wbgr" }, /* upside down */
    { 0, -1, 1, 0, "gwrb" },  /* three quarters */
    { -1, 0, 0, 1, "grwb" },  /* a mirror: some cameras at the front */
    { 1, 0, 0, -1, "bwrg" },  { 0, 1, 1, 0, "rbgw" },
    { 0, -1, -1, 0, "wgbr" }, { 0, 0, 0, 0, "rgbw" }, /* says nothing */
};

static void check(const char *path, const Turn *t)
{
    Video     *v;
    VideoFrame f;
    int        n = 0, on_side = t->b != 0;
    assert_int_equal(video_open(&v, path), 0);
    for (; video_next(v, &f) > 0; n++) {
        assert_int_equal(f.w, on_side ? 16 : 32);
        assert_int_equal(f.h, on_side ? 32 : 16);
        int  x[2] = { f.w / 4, f.w * 3 / 4 }, y[2] = { f.h / 4, f.h * 3 / 4 };
        char seen[5] = { colour_at(&f, x[0], y[0]), colour_at(&f, x[1], y[0]), colour_at(&f, x[0], y[1]),
                         colour_at(&f, x[1], y[1]) };
        assert_string_equal(seen, t->seen);
    }
    assert_int_equal(n, 3);
    video_close(v);
}

static void test_turns(void **state)
{
    Video *v;
    if (video_open(&v, "tests/golden/quarters.mp4") < 0 && err_kind() != ERR_USER) {
        print_message("%s\n", err_get());
        err_clear();
        skip();
    }
    video_close(v);
    for (int i = 0; i < ARRAY_LEN(turns); i++) {
        const char *path = in(state, "turned.mp4");
        write_turned(path, turns[i].a, turns[i].b, turns[i].c, turns[i].d);
        check(path, &turns[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(test_turns, folder_setup,
                                                                        folder_teardown) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
