/* Thread blocks on the CPU: which thread runs, which waits, and how a launch begins and ends. A part of
 * hopper.h.
 *
 * 1. Threads are coroutines, all of one launch at once. A thread that waits names a word and a value, and
 *    goes on when the word has another value. The code that changes the word need not know which thread
 *    waits.
 * 2. rand() decides which warp goes on. Some warps are much slower than others; each launch has other slow
 *    warps.
 * 3. Neighbouring blocks are clusters of two.
 * 4. A launch fails if no thread can go on, or if the kernel does something that has no meaning. A message
 *    says so, and the launch stops. */
#ifndef TESTS_EMULATE_MACHINE_H
#define TESTS_EMULATE_MACHINE_H

#include <assert.h>
#include <functional>
#include <map>
#include <memory>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __grid_constant__
#define __align__(n)
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define CUDA_TRY(call)                                                                                       \
    do {                                                                                                     \
        if ((call) < 0) return -1;                                                                           \
    } while (0)

enum { SHARED_BYTES = 232448, MAX_THREADS = 4096, STACK_BYTES = 1 << 16, CLUSTER_BLOCKS = 2 };

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz) {}
};

/* ---- the machine --------------------------------------------------------------------------------------- */

struct Product; /* hopper.h */
struct Store;   /* memory.h */

/* A barrier in shared memory: arrivals and bytes that are still to come. */
struct Barrier {
    int      count, left;
    int64_t  n_bytes;
    uint32_t phase;
};

/* Threads that wait for each other, and what each of them brings. */
struct Meeting {
    int         n     = 0;
    uint32_t    round = 0;
    const void *brought[1024];
};

/* What the copy engine or the tensor cores will do, and when. */
struct Later {
    long                  due;
    std::function<void()> act;
};

struct Block {
    std::vector<char>                                    shared; /* begins at address 1024 */
    std::map<uint32_t, Barrier>                          barrier;
    std::map<int, Meeting>                               meeting;
    std::map<int, std::vector<std::shared_ptr<Product>>> product; /* of each warpgroup, in order */
    std::vector<Later>                                   later;
    unsigned                                             n_left; /* threads that have not ended */
};

/* What was asked for in groups: the committed ones, then the open one. */
template <typename T> using Groups = std::vector<std::vector<T>>;

/* A product that a thread waits for: where its part goes, and whether it is added there. */
struct Pending {
    std::shared_ptr<Product> product;
    float                   *d;
    std::vector<float>       before; /* what it is added to; none: what the product on its way leaves there */
};

struct Thread {
    ucontext_t                     context;
    std::vector<char>              stack;
    bool                           done;
    const uint32_t                *word; /* it waits while this is `held`; NULL: it can go on */
    uint32_t                       held;
    size_t                         n_product; /* asked for */
    Groups<Pending>                products;
    Groups<std::shared_ptr<Store>> stores;

    bool able() const { return !done && !(word && *word == held); }
};

/* One launch. */
struct Hopper {
    std::vector<Block>    block;
    std::vector<int>      slow;     /* a warp runs every how many times, on average */
    unsigned              n_thread; /* of a block */
    int                   now;      /* the thread that runs */
    Block                *here;     /* its block */
    long                  time;     /* rounds in which each warp may have run */
    bool                  inside;   /* a thread runs, not the machine */
    bool                  failed;
    ucontext_t            home;
    Thread                thread[MAX_THREADS];
    std::function<void()> body;
};
inline Hopper machine;
inline char   shared[1]; /* only its name is used */

inline Block   &my_block() { return *machine.here; }
inline Thread  &me() { return machine.thread[machine.now]; }
inline unsigned my_place() { return (unsigned)machine.now % machine.n_thread; } /* in the block */
inline unsigned my_block_at() { return (unsigned)machine.now / machine.n_thread; }
inline int      my_warp() { return (int)my_place() / 32; }
inline int      my_lane() { return (int)my_place() % 32; }

/* What CUDA calls them, of the first of three dimensions. */
template <unsigned (*NUMBER)()> struct Named {
    struct {
        operator unsigned() const { return NUMBER(); }
    } x;
};
inline unsigned                                   my_grid() { return (unsigned)machine.block.size(); }
[[maybe_unused]] static const Named<&my_place>    threadIdx;
[[maybe_unused]] static const Named<&my_block_at> blockIdx;
[[maybe_unused]] static const Named<&my_grid>     gridDim;

/* A thread does not come back from it. */
inline void give_up(const char *why)
{
    if (!machine.failed) printf("not ok: %s\n", why);
    machine.failed = true;
    if (machine.inside) swapcontext(&me().context, &machine.home);
}

/* ---- waiting ------------------------------------------------------------------------------------------- */

inline void wait_while(const uint32_t *word, uint32_t held)
{
    me().word = word;
    me().held = held;
    if (!me().able()) swapcontext(&me().context, &machine.home);
    me().word = NULL;
}

/* Called where a thread has told others something: they may be much further when it goes on. */
inline void dawdle()
{
    if (rand() % 4 == 0) swapcontext(&me().context, &machine.home);
}

inline Meeting &meet(Block &b, int id, int n, int seat, const void *brought)
{
    Meeting &m      = b.meeting[id];
    uint32_t round  = m.round;
    m.brought[seat] = brought;
    if (++m.n < n) {
        wait_while(&m.round, round);
    } else {
        m.n = 0;
        m.round++;
    }
    return m;
}

/* 0 .. 15 are those of bar.sync. */
enum { MEET_BLOCK = 16, MEET_CLUSTER, MEET_WARP = 1000, MEET_WARP_END = 2000, MEET_SYNC = 3000 };

inline Meeting &warp_meets(const void *x)
{
    return meet(my_block(), MEET_WARP + my_warp(), 32, my_lane(), x);
}
inline void warp_parts() { meet(my_block(), MEET_WARP_END + my_warp(), 32, my_lane(), NULL); }

inline void __syncthreads() { meet(my_block(), MEET_BLOCK, (int)machine.n_thread, (int)my_place(), NULL); }
inline void __syncwarp() { meet(my_block(), MEET_SYNC + my_warp(), 32, my_lane(), NULL); }
inline void ptx_bar_sync(int id, int n) { meet(my_block(), id, n, (int)my_place() % n, NULL); }

template <typename T> T warp_take(T x, int from)
{
    T y = *(const T *)warp_meets(&x).brought[from];
    warp_parts();
    return y;
}
template <typename T> T __shfl_xor_sync(unsigned, T x, int bit) { return warp_take(x, my_lane() ^ bit); }
inline int              __shfl_sync(unsigned, int x, int lane) { return warp_take(x, lane); }
inline bool             __any_sync(unsigned, bool x)
{
    Meeting &m   = warp_meets(&x);
    bool     any = false;
    for (int i = 0; i < 32; i++) any |= *(const bool *)m.brought[i];
    warp_parts();
    return any;
}

/* ---- clusters ------------------------------------------------------------------------------------------ */

inline int    ptx_cluster_rank() { return (int)my_block_at() % CLUSTER_BLOCKS; }
inline Block &cluster_block(int rank)
{
    return machine.block.at(my_block_at() / CLUSTER_BLOCKS * CLUSTER_BLOCKS + (unsigned)rank);
}
inline void ptx_cluster_sync()
{
    int n = (int)machine.n_thread;
    meet(cluster_block(0), MEET_CLUSTER, CLUSTER_BLOCKS * n, ptx_cluster_rank() * n + (int)my_place(), NULL);
}

/* ---- launching ----------------------------------------------------------------------------------------- */

inline void stores_end(); /* memory.h: of a thread that ends */

inline void thread_main()
{
    machine.body();
    stores_end();
    me().done = true;
    my_block().n_left--;
    swapcontext(&me().context, &machine.home);
}

/* Runs the warp, unless it is its turn to be slow. False if all of its threads wait. */
inline bool warp_run(int warp)
{
    bool able = false, now = rand() % machine.slow[(size_t)warp] == 0;
    for (int t = warp * 32; t < warp * 32 + 32; t++) {
        if (!machine.thread[t].able()) continue;
        able           = true;
        machine.now    = t;
        machine.here   = &machine.block[my_block_at()];
        machine.inside = true;
        if (now && !machine.failed) swapcontext(&machine.home, &me().context);
        machine.inside = false;
    }
    return able;
}

/* Some things take much longer than others. */
inline long some_time() { return machine.time + (rand() % 8 ? rand() % 4 : rand() % 500); }

/* Does in the block what is due. False if there is nothing at all to do. */
inline bool later_run(Block &b)
{
    if (b.later.empty()) return false;
    if (b.n_left == 0) give_up("a copy into a block that has ended");
    machine.here = &b;
    for (size_t i = 0; i < b.later.size(); i++) {
        if (b.later[i].due > machine.time) continue;
        b.later[i].act();
        b.later.erase(b.later.begin() + (long)i--);
    }
    return true;
}

/* 0, or -1 after give_up(). */
inline int machine_run()
{
    machine.failed = false;
    for (unsigned left = 1; left > 0 && !machine.failed; machine.time++) {
        bool able = false;
        for (int w = 0; w < (int)machine.slow.size(); w++) able |= warp_run(w);
        for (Block &b : machine.block) able |= later_run(b);
        left = 0;
        for (Block &b : machine.block) left += b.n_left;
        if (!able && left > 0) give_up("deadlock");
    }
    for (Block &b : machine.block) {
        if (!b.later.empty()) give_up("a copy that nobody waited for");
    }
    return machine.failed ? -1 : 0;
}

typedef int cudaStream_t;
typedef struct cudaLaunchConfig {
    dim3         gridDim, blockDim;
    size_t       dynamicSmemBytes;
    cudaStream_t stream;
} cudaLaunchConfig_t;
inline int cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t)
{
    memset(p, byte, n);
    return 0;
}
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <typename K> int cudaFuncSetAttribute(K *, int, int) { return 0; }
template <typename K> int cudaOccupancyMaxActiveClusters(int *n, K *, const cudaLaunchConfig_t *cfg)
{
    *n = (int)cfg->gridDim.x / CLUSTER_BLOCKS;
    return 0;
}

inline void thread_init(Thread &t)
{
    t.stack.resize(STACK_BYTES);
    t.done      = false;
    t.word      = NULL;
    t.n_product = 0;
    t.products.assign(1, {});
    t.stores.assign(1, {});
    getcontext(&t.context);
    t.context.uc_stack.ss_sp   = t.stack.data();
    t.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&t.context, thread_main, 0);
}

template <typename K, typename... A>
int cudaLaunchKernelEx(const cudaLaunchConfig_t *cfg, K *kernel, const A &...a)
{
    static const int slow[] = { 1, 2, 2, 3, 3, 30 };
    unsigned         n      = cfg->gridDim.x * cfg->blockDim.x;
    assert(n <= MAX_THREADS && cfg->dynamicSmemBytes <= SHARED_BYTES);
    machine.n_thread = cfg->blockDim.x;
    machine.block.assign(cfg->gridDim.x, Block());
    machine.slow.assign(n / 32, 1);
    machine.body = [&] { kernel(a...); };
    for (int &s : machine.slow) s = slow[rand() % 6];
    for (Block &b : machine.block) {
        b.shared.assign(1024 + cfg->dynamicSmemBytes, (char)0xff);
        b.n_left = machine.n_thread;
    }
    for (unsigned t = 0; t < n; t++) thread_init(machine.thread[t]);
    return machine_run();
}

#endif
