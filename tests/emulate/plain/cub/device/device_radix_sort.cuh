/* The sort that k_embed.cu takes from CUB: pairs by bits [begin, end) of their keys, stable, into the
 * other buffer. */
#ifndef TESTS_EMULATE_PLAIN_RADIX_SORT_CUH
#define TESTS_EMULATE_PLAIN_RADIX_SORT_CUH

#include <algorithm>
#include <stdint.h>
#include <vector>

namespace cub
{
template <typename T> struct DoubleBuffer {
    T  *buffer[2];
    int selector;
    DoubleBuffer(T *a, T *b) : buffer{ a, b }, selector(0) {}
};

struct DeviceRadixSort {
    static int SortPairs(void *table, size_t &bytes, DoubleBuffer<int32_t> &key, DoubleBuffer<int32_t> &value,
                         int n, int begin, int end, void *)
    {
        if (!table) {
            bytes = 1024;
            return 0;
        }
        std::vector<int> order((size_t)n);
        for (int i = 0; i < n; i++) order[(size_t)i] = i;
        int32_t *k = key.buffer[0], *v = value.buffer[0];
        auto     bits = [&](int i) {
            return (uint32_t)k[i] >> begin & (uint32_t)(((uint64_t)1 << (end - begin)) - 1);
        };
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return bits(a) < bits(b); });
        for (int i = 0; i < n; i++) {
            key.buffer[1][i]   = k[order[(size_t)i]];
            value.buffer[1][i] = v[order[(size_t)i]];
        }
        key.selector = value.selector = 1;
        return 0;
    }
};
} // namespace cub

#endif
