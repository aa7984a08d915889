/* Several ranks: finding the place, meeting, host collectives, missing ranks, ranks that leave, and where
 * sums stand in a list. Several ranks together must train as one rank alone does. All on loopback, every
 * child with a time limit. */
#include "ranks_train.h"

#include "jobs.h"
#include "prog/buckets.h"
#include "run/train.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* ---- Places -------------------------------------------------------------------------------------------- */

static const char *const place_vars[] = {
    "BRIM_RANK",
    "BRIM_WORLD_SIZE",
    "BRIM_LOCAL_RANK",
    "BRIM_MASTER_ADDR",
    "BRIM_MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_STEP_ID",
    "SLURM_NODELIST",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_ID",
    "BRIM_COMM_TIMEOUT",
};

/* "A=1 B=x" into an environment without any of the above. */
static int find_with(Place *p, const char *vars)
{
    char text[512], *save = NULL;
    for (int i = 0; i < ARRAY_LEN(place_vars); i++) unsetenv(place_vars[i]);
    snprintf(text, sizeof text, "%s", vars);
    for (char *v = strtok_r(text, " ", &save); v; v = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(v, '=');
        *eq      = '\0';
        setenv(v, eq + 1, 1);
    }
    int rc = place_find(p);
    for (int i = 0; i < ARRAY_LEN(place_vars); i++) unsetenv(place_vars[i]);
    return rc;
}

static void expect_place(const char *vars, int rank, int world, int local, const char *host, int port)
{
    Place p;
    assert_int_equal(find_with(&p, vars), 0);
    if (p.rank != rank || p.world != world || p.local_rank != local || (host && strcmp(p.host, host) != 0) ||
        (port && p.port != port)) {
        fail_msg("%s: rank %d of %d, local %d, at %s:%d", vars, p.rank, p.world, p.local_rank, p.host,
                 p.port);
    }
}

static void expect_refusal(const char *vars, const char *part)
{
    Place p;
    assert_true(find_with(&p, vars) < 0);
    assert_int_equal(err_kind(), ERR_USER);
    if (!strstr(err_get(), part)) fail_msg("%s: '%s' does not name %s", vars, err_get(), part);
    err_clear();
}

static void test_places(void **state)
{
    Place a, b;
    expect_place("", 0, 1, 0, "", 0);
    expect_place("RANK=2 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=node1 MASTER_PORT=1234", 2, 4, 1, "node1",
                 1234);
    expect_place("RANK=2 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=node1 MASTER_PORT=1234 TORCHELASTIC_RUN_ID=x",
                 2, 4, 1, "node1", 1235);
    expect_place("RANK=3 WORLD_SIZE=4", 3, 4, 3, "127.0.0.1", 0);
    expect_place("RANK=0 WORLD_SIZE=1", 0, 1, 0, "", 0);
    expect_place("RANK=7", 0, 1, 0, "", 0);
    expect_place("BRIM_RANK=1 BRIM_WORLD_SIZE=2 RANK=5 WORLD_SIZE=8", 1, 2, 1, "127.0.0.1", 0);
    expect_place("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                 "OMPI_COMM_WORLD_LOCAL_SIZE=2 "
                 "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
                 1, 2, 1, "127.0.0.1", 0);
    expect_place(
        "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_NTASKS=16 SLURM_LOCALID=1 SLURM_STEP_NUM_NODES=2 "
        "SLURM_STEP_NODELIST=gpu[07-08]",
        5, 8, 1, "gpu07", 0);
    expect_place(
        "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1 SLURM_STEP_ID=0 SLURM_NNODES=1 SLURM_NODELIST=gpu07",
        1, 2, 1, "127.0.0.1", 0);
    /* The script around srun sees the job's tasks but is not one of them. */
    expect_place("SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_LOCALID=0 SLURM_NODELIST=gpu[07-08]", 0, 1, 0, "", 0);
    expect_refusal("RANK=4 WORLD_SIZE=4", "RANK=4");
    expect_refusal("RANK=x WORLD_SIZE=4", "RANK=x");
    expect_refusal("RANK=0 WORLD_SIZE=-2", "WORLD_SIZE=-2");
    expect_refusal("RANK=0 WORLD_SIZE=2 MASTER_PORT=99999", "MASTER_PORT");
    expect_refusal("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2",
                   "MASTER_ADDR");
    /* Two jobs get two ports; the ranks of one job get the same. */
    assert_int_equal(
        find_with(&a,
                  "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=100 SLURM_STEP_ID=0 SLURM_NNODES=1"),
        0);
    assert_int_equal(
        find_with(&b,
                  "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=100 SLURM_STEP_ID=0 SLURM_NNODES=1"),
        0);
    assert_int_equal(a.port, b.port);
    assert_int_equal(
        find_with(&b,
                  "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=101 SLURM_STEP_ID=0 SLURM_NNODES=1"),
        0);
    assert_int_not_equal(a.port, b.port);
}

static void test_first_host(void **state)
{
    static const char *const rows[][2] = { { "n1", "n1" },
                                           { "a,b,c", "a" },
                                           { "n[1-3]", "n1" },
                                           { "n[03,05-09],x", "n03" },
                                           { "r[0-1]n[00-15]", "r0n00" },
                                           { "n[2-3]-ib,z", "n2-ib" } };
    char                     out[32];
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        assert_int_equal(place_first_host(rows[i][0], out, sizeof out), 0);
        assert_string_equal(out, rows[i][1]);
    }
    assert_true(place_first_host("", out, sizeof out) < 0);
    assert_true(place_first_host("n[1-", out, sizeof out) < 0);
    assert_true(place_first_host("n[]", out, sizeof out) < 0);
    assert_true(place_first_host("a-name-longer-than-the-buffer", out, 8) < 0);
}

/* ---- Collectives --------------------------------------------------------------------------------------- */

enum { BIG = 700001 /* more than two pieces, not a multiple of anything */ };

#define EXPECT(cond)                                                                                         \
    do {                                                                                                     \
        if (!(cond)) return err_set("line %d: %s", __LINE__, #cond);                                         \
    } while (0)

/* Not inlined: its product must be rounded before it is added, here as on the other rank. */
__attribute__((noinline)) static float big_value(int rank, int64_t i)
{
    return (float)((i * 2654435761u + (unsigned)rank * 40503u) % 100003) * 1e-3f;
}

static int reduce_big(Comm *c, int rank, int world)
{
    float *x = malloc(sizeof *x * BIG);
    for (int64_t i = 0; i < BIG; i++) x[i] = big_value(rank, i);
    TRY(comm_all_reduce(c, DT_F32, x, BIG));
    for (int64_t i = 0; i < BIG; i++) {
        float sum = big_value(0, i);
        for (int r = 1; r < world; r++) sum += big_value(r, i);
        EXPECT(x[i] == sum); /* to the bit: the order is that of ranks */
    }
    free(x);
    return 0;
}

static int collectives(int rank, int world, int port, void *arg)
{
    Comm *c;
    Place place = ranks_place(rank, world, port);
    TRY(comm_meet(&c, &place, &(CommWaits){ 20, 20, 5 }));
    EXPECT(comm_rank(c) == rank && comm_world(c) == world);
    for (int round = 0; round < 3; round++) {
        char    text[40] = "";
        int64_t lo[2] = { 10 - rank, rank }, hi[2] = { 10 - rank, rank };
        double  sum[2]  = { rank + 1, 0.1 };
        int32_t part[3] = { rank, 10 * rank, 100 * rank }, all[3 * RANKS_MAX] = { 0 };
        if (rank == 0) snprintf(text, sizeof text, "from rank 0 in round %d", round);
        TRY(comm_broadcast(c, text, sizeof text));
        EXPECT(strcmp(text, round == 0   ? "from rank 0 in round 0"
                            : round == 1 ? "from rank 0 in round 1"
                                         : "from rank 0 in round 2") == 0);
        TRY(comm_min_i64(c, lo, 2));
        EXPECT(lo[0] == 10 - (world - 1) && lo[1] == 0);
        TRY(comm_max_i64(c, hi, 2));
        EXPECT(hi[0] == 10 && hi[1] == world - 1);
        TRY(comm_sum_f64(c, sum, 2));
        EXPECT(sum[0] == world * (world + 1) / 2.0 && sum[1] > 0.0999 * world);
        TRY(comm_barrier(c));
        TRY(comm_all_gather(c, all, part, sizeof part));
        for (int r = 0; r < world; r++)
            EXPECT(all[3 * r] == r && all[3 * r + 1] == 10 * r && all[3 * r + 2] == 100 * r);
        memset(all, 0, sizeof all);
        memcpy(&all[3 * rank], part, sizeof part);
        TRY(comm_all_gather(c, all, &all[3 * rank], sizeof part));
        for (int r = 0; r < world; r++) EXPECT(all[3 * r + 2] == 100 * r);
    }
    TRY(reduce_big(c, rank, world));
    comm_close(c, 1);
    return 0;
}

static void test_collectives(void **state)
{
    for (int world = 2; world <= 4; world++) assert_true(ranks_run(world, 60, collectives, NULL, NULL));
    /* Alone everything is allowed and does nothing. */
    double one   = 3;
    Place  alone = { .world = 1 };
    Comm  *c;
    assert_int_equal(comm_meet(&c, &alone, &comm_waits), 0);
    assert_null(c);
    assert_int_equal(comm_sum_f64(c, &one, 1) | comm_barrier(c) | comm_broadcast(c, &one, sizeof one), 0);
    assert_true(one == 3 && comm_world(c) == 1 && comm_rank(c) == 0);
    comm_close(c, 1);
}

/* ---- Trouble ------------------------------------------------------------------------------------------- */

typedef struct {
    char   text[RANKS_MAX][512];
    double took_s[RANKS_MAX];
} Trouble;

static int note_error(Trouble *t, int rank, double begin_s)
{
    snprintf(t->text[rank], sizeof t->text[rank], "%s", err_get());
    t->took_s[rank] = clock_now_s() - begin_s;
    err_clear();
    return 0;
}

/* Three are expected, two come. */
static int one_missing(int rank, int world, int port, void *arg)
{
    Comm  *c;
    double t0    = clock_now_s();
    Place  place = ranks_place(rank, 3, port);
    EXPECT(comm_meet(&c, &place, &(CommWaits){ 1.0, 5, 5 }) < 0);
    return note_error(arg, rank, t0);
}

static int hub_missing(int rank, int world, int port, void *arg)
{
    Comm  *c;
    double t0    = clock_now_s();
    Place  place = ranks_place(1, 2, port);
    EXPECT(comm_meet(&c, &place, &(CommWaits){ 0.5, 5, 5 }) < 0);
    return note_error(arg, rank, t0);
}

static void expect_text(const Trouble *t, int rank, const char *part)
{
    if (!strstr(t->text[rank], part))
        fail_msg("rank %d: \"%s\" does not say \"%s\"", rank, t->text[rank], part);
}

static void test_rank_never_comes(void **state)
{
    Trouble *t = ranks_shared(sizeof *t);
    assert_true(ranks_run(2, 30, one_missing, t, NULL));
    expect_text(t, 0, "1 of 3 ranks did not come (2)");
    expect_text(t, 0, "127.0.0.1 port");
    expect_text(t, 1, "rank 1 was turned away");
    expect_text(t, 1, "did not come (2)");
    assert_true(t->took_s[0] >= 0.9 && t->took_s[0] < 8 && t->took_s[1] < 8);
    memset(t, 0, sizeof *t);
    assert_true(ranks_run(1, 30, hub_missing, t, NULL));
    expect_text(t, 0, "rank 1 could not reach rank 0 at 127.0.0.1 port");
    expect_text(t, 0, "within 0.5 s");
    assert_true(t->took_s[0] < 8);
    munmap(t, sizeof *t);
}

static int port_taken(int rank, int world, int port, void *arg)
{
    Comm              *c;
    struct sockaddr_in a  = { .sin_family      = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                              .sin_port        = htons((uint16_t)port) };
    int                fd = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT(bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0);
    Place place = ranks_place(0, 2, port);
    EXPECT(comm_meet(&c, &place, &(CommWaits){ 5, 5, 5 }) < 0);
    return note_error(arg, rank, 0);
}

static void test_port_in_use(void **state)
{
    Trouble *t = ranks_shared(sizeof *t);
    assert_true(ranks_run(1, 30, port_taken, t, NULL));
    expect_text(t, 0, "in use");
    expect_text(t, 0, "MASTER_PORT");
    munmap(t, sizeof *t);
}

/* A stranger and a rank of another run knock before rank 1 does. */
static int with_strangers(int rank, int world, int port, void *arg)
{
    Comm *c;
    Place place = ranks_place(rank == 2 ? 1 : rank, 2, port);
    if (rank == 1) {
        Place              other = ranks_place(1, 7, port);
        struct sockaddr_in a     = { .sin_family      = AF_INET,
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                     .sin_port        = htons((uint16_t)port) };
        int                fd    = socket(AF_INET, SOCK_STREAM, 0);
        while (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) usleep(20000);
        EXPECT(write(fd, "GET / HTTP/1.1\r\nHost: here\r\n\r\n", 30) == 30);
        EXPECT(comm_meet(&c, &other, &(CommWaits){ 5, 5, 5 }) < 0);
        return note_error(arg, rank, 0);
    }
    if (rank == 2) usleep(500 * 1000);
    TRY(comm_meet(&c, &place, &(CommWaits){ 20, 20, 5 }));
    TRY(comm_barrier(c));
    comm_close(c, 1);
    return 0;
}

static void test_strangers(void **state)
{
    Trouble *t = ranks_shared(sizeof *t);
    assert_true(ranks_run(3, 30, with_strangers, t, NULL));
    expect_text(t, 1, "rank 1 of 7 does not belong to this run");
    munmap(t, sizeof *t);
}

static int rank_leaves(int rank, int world, int port, void *arg)
{
    Comm  *c;
    double x[1000] = { 0 }, t0 = clock_now_s();
    Place  place = ranks_place(rank, world, port);
    TRY(comm_meet(&c, &place, &(CommWaits){ 20, 20, 20 }));
    TRY(comm_barrier(c));
    if (rank == 1) _exit(0); /* no goodbye */
    EXPECT(comm_sum_f64(c, x, 1000) < 0);
    note_error(arg, rank, t0);
    comm_close(c, 0);
    return 0;
}

static int rank_stuck(int rank, int world, int port, void *arg)
{
    Comm *c;
    Place place = ranks_place(rank, world, port);
    TRY(comm_meet(&c, &place, &(CommWaits){ 20, 20, 0.5 }));
    TRY(comm_barrier(c));
    if (rank == 1) _exit(0);
    pause(); /* as if waiting for rank 1 on a GPU; only the watcher can end this before SIGALRM does */
    return 0;
}

/* Rank 1 fails, and what it gives up then waits for the others, as a GPU's communicator does. */
static int rank_fails(int rank, int world, int port, void *arg)
{
    Comm  *c;
    double x[1000] = { 0 }, t0 = clock_now_s();
    Place  place = ranks_place(rank, world, port);
    TRY(comm_meet(&c, &place, &(CommWaits){ 20, 20, 2 }));
    TRY(comm_barrier(c));
    if (rank == 1) {
        comm_leave(c);
        pause();
    }
    EXPECT(comm_sum_f64(c, x, 1000) < 0);
    note_error(arg, rank, t0);
    comm_close(c, 0);
    return 0;
}

/* Of three ranks: the hub finds rank 1 gone and says so, the third finds the hub gone, both at once. */
static void expect_soon_left(const Trouble *t)
{
    expect_text(t, 0, "rank 0: rank 1 has left the run");
    expect_text(t, 2, "rank 2: rank 0 has left the run");
    assert_true(t->took_s[0] < 10 && t->took_s[2] < 10);
}

static void test_rank_fails(void **state)
{
    int      status[3];
    Trouble *t = ranks_shared(sizeof *t);
    assert_false(ranks_run(3, 30, rank_fails, t, status));
    expect_soon_left(t);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 1);
    assert_int_equal(status[2], 0);
    munmap(t, sizeof *t);
}

static void test_rank_leaves(void **state)
{
    int      status[3];
    Trouble *t = ranks_shared(sizeof *t);
    assert_true(ranks_run(3, 30, rank_leaves, t, NULL));
    expect_soon_left(t);
    munmap(t, sizeof *t);
    assert_false(ranks_run(3, 30, rank_stuck, NULL, status));
    assert_int_equal(status[0], 1);
    assert_int_equal(status[1], 0);
    assert_int_equal(status[2], 1);
}

static int out_of_step(int rank, int world, int port, void *arg)
{
    Comm   *c;
    int64_t x[4]  = { 0 };
    Place   place = ranks_place(rank, world, port);
    TRY(comm_meet(&c, &place, &(CommWaits){ 20, 20, 20 }));
    TRY(comm_barrier(c));
    EXPECT((rank == 0 ? comm_max_i64(c, x, 4) : comm_min_i64(c, x, 3)) < 0);
    note_error(arg, rank, 0);
    comm_close(c, 0);
    return 0;
}

static void test_out_of_step(void **state)
{
    Trouble *t = ranks_shared(sizeof *t);
    assert_true(ranks_run(2, 30, out_of_step, t, NULL));
    expect_text(t, 0,
                "rank 0 calls max i64 number 1 with 32 bytes, rank 1 calls min i64 number 1 with 24 bytes");
    munmap(t, sizeof *t);
}

/* ---- Buckets ------------------------------------------------------------------------------------------- */

static Job *null_job(int world, double dropout, RecomputeLevel level)
{
    Recipe r;
    Job   *b;
    train_case_recipe(&r);
    r.model.dropout = dropout;
    JobChoice c = { .micro_batch = 2, .level = level, .head_rows = 32, .compute = DT_BF16, .world = world };
    if (build_create(&b, &task_lm, &r, &c, JOB_TRAIN, dev_null()) < 0) fail_msg("%s", err_get());
    return b;
}

static int touches(const Op *op, const Tensor *v)
{
    for (int a = 0; a < op_table[op->kind].n_tensor; a++) {
        const Tensor *t = op->args.t[a];
        if (t && t->root == v->root && t->offset_bytes < v->offset_bytes + tensor_bytes(v) &&
            v->offset_bytes < t->offset_bytes + tensor_bytes(t)) {
            return 1;
        }
    }
    return 0;
}

/* Every byte of flat is summed once, in place, on the communication lane, behind everything that touches it
 * and as soon as that is possible. Returns how many sums there are. */
static int check_sums(const Prog *p, const Tensor *flat)
{
    size_t         total = tensor_bytes(flat), lo = flat->offset_bytes;
    unsigned char *seen = calloc(total, 1);
    int            n    = 0;
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op     *op = prog_op(p, i);
        const Tensor *v  = op->args.all_reduce.y;
        if (op->kind != OP_ALL_REDUCE || v->root != flat->root) continue;
        assert_true(op->lane == LANE_COMM && v == op->args.all_reduce.x && v->dtype == flat->dtype);
        assert_true(v->offset_bytes >= lo && v->offset_bytes + tensor_bytes(v) <= lo + total);
        for (size_t k = 0; k < tensor_bytes(v); k++) assert_int_equal(seen[v->offset_bytes - lo + k]++, 0);
        int before = i - 1;
        while (before >= 0 && prog_op(p, before)->kind == OP_ALL_REDUCE) before--;
        assert_true(touches(prog_op(p, before), v));
        for (int j = i + 1; j < prog_n_op(p); j++) assert_false(touches(prog_op(p, j), v));
        n++;
    }
    for (size_t k = 0; k < total; k++) assert_int_equal(seen[k], 1);
    free(seen);
    return n;
}

static void test_buckets(void **state)
{
    static const size_t sizes[] = { 1, 4096, 40000, 1 << 20 };
    int                 last    = 1 << 30;
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        Job  *b    = null_job(1, 0.1, LEVEL_NONE);
        Prog *p    = job_prog(b, "micro-step");
        int   n_op = prog_n_op(p), n = 0;
        assert_null(job_prog(b, "last micro"));
        for (int k = 0; k < n_op; k++) assert_int_not_equal(prog_op(p, k)->kind, OP_ALL_REDUCE);
        for (int r = 0; r < REGION_MUON; r++)
            prog_add_reductions(p, b->table[0]->flat[COL_GRAD][r], sizes[i]);
        for (int r = 0; r < REGION_MUON; r++) n += check_sums(p, b->table[0]->flat[COL_GRAD][r]);
        assert_int_equal(prog_n_op(p), n_op + n);
        if (i == 0) assert_int_equal(n, b->table[0]->n_param);
        if (i == ARRAY_LEN(sizes) - 1) assert_int_equal(n, REGION_MUON);
        assert_true(n <= last);
        last = n;
        build_destroy(b);
    }
}

static void test_last_micro(void **state)
{
    for (int level = LEVEL_NONE; level <= LEVEL_BLOCK; level++) {
        Job  *b     = null_job(4, 0.1, (RecomputeLevel)level);
        Prog *micro = job_prog(b, "micro-step"), *last = job_prog(b, "last micro");
        int   n = check_sums(last, b->sums);
        assert_int_equal(n, 1);
        for (int r = 0; r < REGION_MUON; r++) n += check_sums(last, b->table[0]->flat[COL_GRAD][r]);
        assert_int_equal(prog_n_op(last), prog_n_op(micro) + n);
        assert_int_equal(prog_verify(last), 0);
        Dev *dev = dev_open("null", NULL, NULL);
        assert_int_equal(build_bind(b, dev), 0);
        if (prog_run(last, dev) < 0) fail_msg("%s", err_get());
        build_destroy(b);
        dev_close(dev);
    }
}

/* ---- Training ------------------------------------------------------------------------------------------ */

/* The sums of gradients are the same numbers in another order: 2^-24 relative each. AdamW's first steps
 * divide by the gradient's own size, so where a gradient is rounding noise two runs may part by up to lr;
 * over 5 steps that moves the norm of all weights by far less than 1e-5. */
static const double same_step = 1e-5;

static void train_on(TrainCase *t, int world, OptimKind kind)
{
    train_case_recipe(&t->recipe);
    t->recipe.optim.kind = kind;
    t->device            = "cpu";
    t->compute           = DT_F32;
    t->micro_batch       = 2;
    assert_int_equal(train_case_open(t), 0);
    assert_true(ranks_run(world, 120, train_rank, t, NULL));
}

static void train_on_ranks(OptimKind kind)
{
    TrainCase one = { 0 };
    train_on(&one, 1, kind);
    assert_true(one.loss[0] > one.loss[TRAIN_STEPS - 1] * 0.5 && one.norm[0] > 0);
    for (int world = 2; world <= 4; world += 2) {
        TrainCase many = { 0 };
        train_on(&many, world, kind);
        double loss    = train_worst(many.loss, one.loss, TRAIN_STEPS),
               norm    = train_worst(many.norm, one.norm, TRAIN_STEPS);
        double weights = train_distance(many.weights, one.weights, one.n_weight),
               val     = train_worst(many.val, one.val, 1);
        if (!(loss <= same_step && norm <= same_step && weights <= same_step && val <= same_step)) {
            fail_msg("%d ranks: loss %.2e, norm %.2e, weights %.2e, validation %.2e apart from one rank",
                     world, loss, norm, weights, val);
        }
        for (int r = 1; r < world; r++) {
            assert_memory_equal(many.loss, many.loss + r * TRAIN_STEPS, sizeof *many.loss * TRAIN_STEPS);
            assert_memory_equal(many.norm, many.norm + r * TRAIN_STEPS, sizeof *many.norm * TRAIN_STEPS);
            assert_memory_equal(many.weights, many.weights + r * many.n_weight,
                                sizeof *many.weights * (size_t)many.n_weight);
            assert_true(many.val[r] == many.val[0]);
        }
        train_case_close(&many);
    }
    train_case_close(&one);
}

static void test_training(void **state) { train_on_ranks(OPTIM_ADAMW); }

/* Ranks share the orthogonal matrices. Four ranks and two matrices of one shape: some ranks have none. */
static void test_training_muon(void **state) { train_on_ranks(OPTIM_MUON); }

/* Ranks agree on the scales of fp8, so one rank's checkpoint serves all. From the second step on the scales
 * of two ranks are those of one rank, because the largest number of a step does not depend on who saw it.
 * The first step takes a scale from its first micro-batch: that is why losses only come near, by the 2^-4
 * of an fp8 mantissa over many products. */
static void test_training_fp8(void **state)
{
    TrainCase run[2] = { { .fp8 = 1 }, { .fp8 = 1 } };
    for (int k = 0; k < 2; k++) train_on(&run[k], k + 1, OPTIM_ADAMW);
    TrainCase *one = &run[0], *two = &run[1];
    size_t     n_site = TRAIN_SITES * FP8_SITE, n = sizeof *two->sites * n_site;
    assert_true(two->sites[FP8_SITE_SCALE] > 0);
    assert_memory_equal(two->sites, two->sites + n_site, n);
    assert_memory_equal(two->weights, two->weights + two->n_weight,
                        sizeof *two->weights * (size_t)two->n_weight);
    double loss = train_worst(two->loss, one->loss, TRAIN_STEPS);
    if (!(loss <= 0.01)) fail_msg("losses are %.2e apart from those of one rank", loss);
    for (int k = 0; k < 2; k++) train_case_close(&run[k]);
}

/* ---- The whole program --------------------------------------------------------------------------------- */

typedef struct {
    Recipe recipe;
    int    stop; /* 1: rank 1 gets SIGTERM once a step is in the metrics; 2: while step 0 is evaluated */
} RunCase;

static void run_case_recipe(Recipe *r, const char *name)
{
    train_case_recipe(r);
    snprintf(r->run, sizeof r->run, "%s", name);
    snprintf(r->device, sizeof r->device, "cpu");
    r->steps             = 6;
    r->log_every         = 1;
    r->model.vocab       = 256;
    r->data.kind         = DATA_TEXT;
    r->data.val_fraction = 0.2;
    snprintf(r->data.train, sizeof r->data.train, "text.txt");
    r->eval.every       = 3;
    r->eval.sequences   = 13; /* of which the last batch is not full, whatever the ranks and micro-batches */
    r->checkpoint.every = 2;
    r->checkpoint.keep  = 2;
    r->optim.schedule   = SCHEDULE_CONSTANT;
}

static int write_text(const char *path, int lines)
{
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < lines; i++)
        fprintf(f, "line %d of a text that is easy to learn\n", (int)((int64_t)i * i % 97));
    return f && fclose(f) == 0 ? 0 : -1;
}

static int run_rank(int rank, int world, int port, void *arg)
{
    RunCase *c  = arg;
    int      fd = open("/dev/null", O_WRONLY);
    ranks_environment(rank, world, port);
    dup2(fd, 2); /* what rank 0 says is not the test's */
    if (c->stop && rank == 1 && fork() == 0) {
        char        path[RECIPE_STR + 32];
        struct stat st = { 0 };
        snprintf(path, sizeof path, "runs/%s/metrics.jsonl", c->recipe.run);
        while ((stat(path, &st) != 0 || (c->stop == 1 && st.st_size == 0)) && getppid() > 1) usleep(10000);
        if (c->stop == 2) usleep(300000);
        kill(getppid(), SIGTERM);
        _exit(0);
    }
    return train_run(&task_lm, &c->recipe, &(TrainOptions){ .begin_s = clock_now_s() });
}

/* Losses and validation losses of a run, by step. */
typedef struct {
    double loss[64], val[64];
    int    n_line, last;
} Metrics;

static void read_metrics(Metrics *m, const char *run)
{
    char path[128], line[1024];
    snprintf(path, sizeof path, "runs/%s/metrics.jsonl", run);
    FILE *f = fopen(path, "r");
    memset(m, 0, sizeof *m);
    if (!f) fail_msg("%s is missing", path);
    while (fgets(line, sizeof line, f)) {
        int         step = -1;
        const char *loss = strstr(line, "\"loss\": "), *val = strstr(line, "\"val_loss\": ");
        assert_int_equal(sscanf(line, "{\"step\": %d", &step), 1);
        assert_true(step >= 0 && step < 64);
        double *to = val ? &m->val[step] : &m->loss[step];
        assert_true(*to == 0); /* one writer, one line a step */
        *to     = strtod(val ? val + 12 : loss + 8, NULL);
        m->last = MAX(m->last, step);
        m->n_line++;
    }
    fclose(f);
}

static void expect_same(const Metrics *a, const Metrics *b)
{
    assert_int_equal(a->n_line, b->n_line);
    for (int i = 0; i < 64; i++) {
        if (!(fabs(a->loss[i] - b->loss[i]) <= same_step * b->loss[i]) ||
            !(fabs(a->val[i] - b->val[i]) <= same_step * b->val[i])) {
            fail_msg("step %d: loss %.9g and %.9g, validation %.9g and %.9g", i, a->loss[i], b->loss[i],
                     a->val[i], b->val[i]);
        }
    }
}

static void train_as(const char *name, int world, int64_t steps)
{
    RunCase c = { 0 };
    run_case_recipe(&c.recipe, name);
    c.recipe.steps = steps;
    assert_true(ranks_run(world, 120, run_rank, &c, NULL));
}

static void test_whole_runs(void **state)
{
    Metrics one, two, resumed;
    train_as("one", 1, 6);
    train_as("two", 2, 6);
    read_metrics(&one, "one");
    read_metrics(&two, "two");
    assert_int_equal(one.last, 6);
    assert_true(one.val[0] > 0 && one.val[3] > 0 && one.val[6] > 0 && one.val[6] < one.val[0]);
    expect_same(&two, &one);
    /* Two ranks begin, four go on. */
    train_as("resumed", 2, 4);
    train_as("resumed", 4, 6);
    read_metrics(&resumed, "resumed");
    resumed.val[4] = 0; /* the first part evaluated at its end */
    resumed.n_line--;
    expect_same(&resumed, &one);
}

static void test_signal_to_one_rank(void **state)
{
    RunCase c = { .stop = 1 };
    run_case_recipe(&c.recipe, "stopped");
    c.recipe.steps      = 100000;
    c.recipe.log_every  = 20;
    c.recipe.eval.every = c.recipe.checkpoint.every = 0;
    assert_true(ranks_run(2, 60, run_rank, &c, NULL));
    assert_int_equal(system("ls runs/stopped/checkpoints/step-*/DONE > /dev/null 2>&1"), 0);
}

/* All ranks leave a long evaluation together, and nothing of it is left. */
static void test_signal_in_evaluation(void **state)
{
    RunCase     c = { .stop = 2 };
    struct stat st;
    Metrics     one, cut;
    assert_int_equal(write_text("long.txt", 600000), 0);
    run_case_recipe(&c.recipe, "cut");
    snprintf(c.recipe.data.val, sizeof c.recipe.data.val, "long.txt");
    c.recipe.data.val_fraction = 0;
    c.recipe.eval.samples      = 1000000;
    assert_true(ranks_run(2, 20, run_rank, &c, NULL));
    assert_int_equal(stat("runs/cut/metrics.jsonl", &st), 0);
    assert_int_equal(st.st_size, 0);
    train_as("cut", 2, 6);
    read_metrics(&one, "one");
    read_metrics(&cut, "cut");
    expect_same(&cut, &one);
}

/* A folder of its own with some text to learn. */
static int group_setup(void **state)
{
    static char folder[] = "/tmp/brim_test_comm_XXXXXX";
    if (!mkdtemp(folder) || chdir(folder) != 0) return -1;
    unsetenv("BRIM_RUNS");
    for (int i = 0; i < ARRAY_LEN(place_vars); i++) unsetenv(place_vars[i]);
    *state = folder;
    return write_text("text.txt", 600);
}

static int group_teardown(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", (char *)*state);
    return chdir("/") != 0 || system(command) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_first_host),
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_rank_never_comes),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_rank_fails),
        cmocka_unit_test(test_rank_leaves),
        cmocka_unit_test(test_out_of_step),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_last_micro),
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_training_muon),
        cmocka_unit_test(test_training_fp8),
        cmocka_unit_test(test_whole_runs),
        cmocka_unit_test(test_signal_to_one_rank),
        cmocka_unit_test(test_signal_in_evaluation),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
