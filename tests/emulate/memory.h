/* Shared memory, the barriers in it, and the copy engine's loads and stores. A part of hopper.h.
 *
 * 1. A load happens at a random time after the request. Until then its destination is NaN.
 * 2. A store reads shared memory at once or, just as likely, when a wait for the reading ends. The data
 *    reaches memory when a wait for the writing ends, or when the thread ends. A thread must wait for the
 *    reading before it ends. */
#ifndef TESTS_EMULATE_MEMORY_H
#define TESTS_EMULATE_MEMORY_H

#include "machine.h"

#include <string.h>

struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};

/* ---- bf16 ---------------------------------------------------------------------------------------------- */

inline float bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
inline uint32_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (f != f) return 0x7fff;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline float    from_bf16(uint32_t h) { return bits_float(h << 16); }
inline uint32_t bf16_pair(float lo, float hi) { return to_bf16(lo) | to_bf16(hi) << 16; }
inline float    bf16_low(uint32_t v) { return bits_float(v << 16); }
inline float    bf16_high(uint32_t v) { return bits_float(v & 0xffff0000u); }

/* ---- shared memory ------------------------------------------------------------------------------------- */

inline uint32_t ptx_smem_addr(const void *) { return 1024; }
inline char    *smem_at(Block &b, uint32_t addr, size_t n_bytes)
{
    assert(addr >= 1024 && addr + n_bytes <= b.shared.size());
    return b.shared.data() + addr;
}
template <typename T> T smem_get(uint32_t addr)
{
    T v;
    memcpy(&v, smem_at(my_block(), addr, sizeof v), sizeof v);
    return v;
}
template <typename T> void smem_put(uint32_t addr, T v)
{
    memcpy(smem_at(my_block(), addr, sizeof v), &v, sizeof v);
}
inline void     smem_store_word(uint32_t addr, uint32_t v) { smem_put(addr, v); }
inline void     smem_store_pair(uint32_t addr, float x, float y) { smem_put(addr, float2{ x, y }); }
inline uint32_t smem_load_word(uint32_t addr) { return smem_get<uint32_t>(addr); }
inline float    smem_load_float(uint32_t addr) { return smem_get<float>(addr); }
inline float4   smem_load_four(uint32_t addr) { return smem_get<float4>(addr); }

/* The same as in k_wgmma.cuh. */
template <int ROW> uint32_t lane_part(int t)
{
    int lane = t % 32, row = t / 32 * 16 + lane % 16, swap = ROW == 128 ? lane % 8 : lane % 8 / 2;
    return (uint32_t)(row * ROW + ((lane / 16) ^ swap) * 16);
}

/* Matrix q's row i is at the address of lane 8q + i; lane l has of it the words l%4 of row l/4. */
inline void smem_store_frags(uint32_t addr, const uint32_t *v)
{
    Meeting &m = warp_meets(&addr);
    for (int q = 0; q < 4; q++)
        smem_put(*(const uint32_t *)m.brought[q * 8 + my_lane() / 4] + (uint32_t)my_lane() % 4 * 4, v[q]);
    warp_parts();
}
inline void smem_load_frags(uint32_t addr, uint32_t *v)
{
    Meeting &m = warp_meets(&addr);
    for (int q = 0; q < 4; q++)
        v[q] = smem_get<uint32_t>(*(const uint32_t *)m.brought[q * 8 + my_lane() / 4] +
                                  (uint32_t)my_lane() % 4 * 4);
    warp_parts();
}

/* ---- barriers ------------------------------------------------------------------------------------------ */

inline void barrier_turn(Barrier &b)
{
    if (b.left < 0) give_up("a barrier was told too often");
    if (b.left > 0 || b.n_bytes != 0) return;
    b.phase ^= 1;
    b.left = b.count;
}
inline void barrier_arrive(Block &block, uint32_t bar, uint32_t n_bytes)
{
    Barrier &b = block.barrier.at(bar);
    if (block.n_left == 0) give_up("a block that has ended was told something");
    b.n_bytes += n_bytes;
    b.left--;
    barrier_turn(b);
    dawdle();
}
inline void bar_init(uint32_t bar, uint32_t n) { my_block().barrier[bar] = { (int)n, (int)n, 0, 0 }; }
inline void bar_expect(uint32_t bar, uint32_t n_bytes) { barrier_arrive(my_block(), bar, n_bytes); }
inline void bar_arrive(uint32_t bar) { barrier_arrive(my_block(), bar, 0); }
inline void bar_arrive_first(uint32_t bar, bool except)
{
    if (my_lane() == 0 && !except) bar_arrive(bar);
}
inline void bar_wait(uint32_t bar, uint32_t parity) { wait_while(&my_block().barrier.at(bar).phase, parity); }
inline void ptx_mbar_init_fence() {}
inline void ptx_fence_async() {}

/* Addresses in a cluster: the block's rank in the upper byte. */
inline uint32_t cluster_addr(uint32_t smem, int rank) { return smem | (uint32_t)rank << 24; }
inline void     cluster_arrive(uint32_t bar)
{
    barrier_arrive(cluster_block((int)(bar >> 24)), bar & 0xffffff, 0);
}

/* ---- boxes --------------------------------------------------------------------------------------------- */

typedef int TmaEncode;
enum { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32 };
struct TmaBox {
    int      type;
    unsigned bytes, cols, rows; /* bytes: of an element */
};
struct TmaHeads {
    int64_t batch, rows, heads, dim, ld;
};
struct HeadBox {
    int head, row, batch;
};
/* A matrix is one head of one sequence. */
struct CUtensorMap {
    char    *p;
    TmaHeads of;
    TmaBox   box;
};
inline int tma_map(TmaEncode, CUtensorMap *map, const void *p, int64_t rows, int64_t cols, int64_t ld,
                   TmaBox b)
{
    if (!p) return 0;
    assert((uintptr_t)p % 16 == 0 && ld * b.bytes % 16 == 0 && b.rows <= 256);
    assert(b.cols * b.bytes == 64 || b.cols * b.bytes == 128);
    assert(b.bytes == (b.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2));
    *map = { (char *)p, { 1, rows, 1, cols, ld }, b };
    return 0;
}
inline int tma_map_heads(TmaEncode, CUtensorMap *map, const void *p, TmaHeads h, TmaBox b)
{
    if (!p) return 0;
    assert((uintptr_t)p % 16 == 0 && h.ld * b.bytes % 16 == 0 && h.dim * b.bytes % 16 == 0 && b.rows <= 256);
    assert(b.cols * b.bytes == 128 && b.type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
    *map = { (char *)p, h, b };
    return 0;
}
inline uint32_t box_bytes(const TmaBox &b) { return b.rows * b.cols * b.bytes; }

/* Swizzled in rows of 64 or 128 bytes: the 16-byte chunk of an address, by the 128 bytes that it is in. */
inline uint32_t swizzled(uint32_t addr, unsigned row_bytes = 128)
{
    return addr ^ (addr >> 7 & (row_bytes / 16 - 1)) << 4;
}

/* Calls f(place in shared memory, place in memory) for each element of the box at column x of a head; NULL:
 * outside. */
template <typename F> void box_walk(const CUtensorMap &m, int x, HeadBox at, uint32_t smem, F f)
{
    unsigned row_bytes = m.box.cols * m.box.bytes;
    assert(smem % (row_bytes * 8) == 0);
    for (unsigned i = 0; i < m.box.rows * m.box.cols; i++) {
        int64_t r = at.row + (int)(i / m.box.cols), c = x + (int)(i % m.box.cols);
        bool    inside = r >= 0 && r < m.of.rows && c >= 0 && c < m.of.dim;
        int64_t elem   = (at.batch * m.of.rows + r) * m.of.ld + at.head * m.of.dim + c;
        f(smem_at(my_block(), swizzled(smem + i * m.box.bytes, row_bytes), m.box.bytes),
          inside ? m.p + elem * m.box.bytes : NULL);
    }
}

/* ---- loads --------------------------------------------------------------------------------------------- */

inline void copied(uint32_t bar, int64_t n_bytes)
{
    Barrier &b = my_block().barrier.at(bar);
    b.n_bytes -= n_bytes;
    barrier_turn(b);
}

inline void load_later(Block &to, uint32_t smem, const CUtensorMap &m, int x, HeadBox at, uint32_t bar)
{
    assert(at.head >= 0 && at.head < m.of.heads && at.batch >= 0 && at.batch < m.of.batch);
    memset(smem_at(to, smem, box_bytes(m.box)), 0xff, box_bytes(m.box));
    to.later.push_back({ some_time(), [=] {
                            box_walk(m, x, at, smem, [&](char *s, const char *p) {
                                if (p) memcpy(s, p, m.box.bytes);
                                if (!p) memset(s, 0, m.box.bytes);
                            });
                            copied(bar, box_bytes(m.box));
                        } });
}
inline void tma_load(uint32_t smem, const CUtensorMap *map, int x, int y, uint32_t bar)
{
    load_later(my_block(), smem, *map, x, { 0, y, 0 }, bar);
}
inline void tma_load_head(uint32_t smem, const CUtensorMap *map, int col, HeadBox at, uint32_t bar)
{
    load_later(my_block(), smem, *map, col, at, bar);
}
/* Each block gets its copy in its own time. */
inline void tma_load_all(uint32_t smem, const CUtensorMap *map, int x, int y, uint32_t bar, uint16_t mask)
{
    for (int r = 0; r < CLUSTER_BLOCKS; r++) {
        if (mask >> r & 1) load_later(cluster_block(r), smem, *map, x, { 0, y, 0 }, bar);
    }
}
inline void tma_load_bytes(uint32_t smem, const void *src, uint32_t n_bytes, uint32_t bar)
{
    memset(smem_at(my_block(), smem, n_bytes), 0xff, n_bytes);
    my_block().later.push_back({ some_time(), [=] {
                                    memcpy(smem_at(my_block(), smem, n_bytes), src, n_bytes);
                                    copied(bar, n_bytes);
                                } });
}

/* ---- stores -------------------------------------------------------------------------------------------- */

struct Store {
    CUtensorMap       map;
    int               x;
    HeadBox           at;
    uint32_t          smem;
    bool              add;
    std::vector<char> read; /* the elements, once they have been read */
};

inline void store_read(Store &s)
{
    if (!s.read.empty()) return;
    unsigned n = s.map.box.bytes;
    box_walk(s.map, s.x, s.at, s.smem,
             [&](const char *from, char *) { s.read.insert(s.read.end(), from, from + n); });
}
inline void store_write(Store &s)
{
    unsigned    n    = s.map.box.bytes;
    const char *from = s.read.data();
    box_walk(s.map, s.x, s.at, s.smem, [&](char *, char *p) {
        if (p && s.add) *(float *)p += *(const float *)from;
        if (p && !s.add) memcpy(p, from, n);
        from += n;
    });
}

inline void store_later(const CUtensorMap *map, int x, HeadBox at, uint32_t smem, bool add)
{
    me().stores.back().push_back(std::make_shared<Store>(Store{ *map, x, at, smem, add, {} }));
    if (rand() % 2) store_read(*me().stores.back().back());
}
inline void tma_store(const CUtensorMap *m, int x, int y, uint32_t smem)
{
    store_later(m, x, { 0, y, 0 }, smem, false);
}
inline void tma_store_head(const CUtensorMap *m, int col, HeadBox at, uint32_t smem)
{
    store_later(m, col, at, smem, false);
}
inline void tma_add(const CUtensorMap *m, int x, int y, uint32_t smem)
{
    assert(m->box.bytes == sizeof(float));
    store_later(m, x, { 0, y, 0 }, smem, true);
}
inline void tma_store_commit() { me().stores.push_back({}); }

template <int N> void tma_store_wait_read()
{
    Groups<std::shared_ptr<Store>> &g = me().stores;
    for (size_t i = 0; i + N + 1 < g.size(); i++) {
        for (std::shared_ptr<Store> &s : g[i]) store_read(*s);
    }
}
inline void tma_store_wait()
{
    Groups<std::shared_ptr<Store>> &g = me().stores;
    tma_store_wait_read<0>();
    while (g.size() > 1) {
        for (std::shared_ptr<Store> &s : g[0]) store_write(*s);
        g.erase(g.begin());
    }
}
inline void stores_end()
{
    for (auto &group : me().stores) {
        for (std::shared_ptr<Store> &s : group) {
            if (s->read.empty() || &group == &me().stores.back()) give_up("a thread ended before its stores");
        }
    }
    tma_store_wait();
}

#endif
