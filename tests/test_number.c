/* Half precision by bits, against the compiler's own _Float16. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tensor/number.h"

static uint16_t half_bits(float x)
{
    _Float16 h = (_Float16)x;
    uint16_t u;
    memcpy(&u, &h, sizeof u);
    return u;
}

/* Every half becomes the float that it is, bit for bit, and comes back. */
static void test_from_f16(void **state)
{
    for (uint32_t i = 0; i < 1 << 16; i++) {
        uint16_t u = (uint16_t)i;
        _Float16 h;
        memcpy(&h, &u, sizeof h);
        float want = (float)h, x = f32_from_f16(u);
        assert_memory_equal(&x, &want, sizeof x);
        if (x == x) assert_int_equal(f16_from_f32(x), u);
    }
}

/* All floats in steps, and the neighbours of every boundary between two halves. */
static void test_to_f16(void **state)
{
    for (uint64_t i = 0; i < UINT64_C(1) << 32; i += 1021) {
        uint32_t u = (uint32_t)i;
        float    x;
        memcpy(&x, &u, sizeof x);
        if (f16_from_f32(x) != half_bits(x)) fail_msg("%a", (double)x);
    }
    for (uint32_t i = 0; i < 0x7C00; i++) {
        float middle = (f32_from_f16((uint16_t)i) + f32_from_f16((uint16_t)(i + 1 < 0x7C00 ? i + 1 : i))) / 2;
        uint32_t u;
        memcpy(&u, &middle, sizeof u);
        for (uint32_t k = u < 2 ? 0 : u - 2; k <= u + 2; k++) {
            float x;
            memcpy(&x, &k, sizeof x);
            if (f16_from_f32(x) != half_bits(x) || f16_from_f32(-x) != half_bits(-x))
                fail_msg("%a", (double)x);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_from_f16), cmocka_unit_test(test_to_f16) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
