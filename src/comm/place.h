/* Place: the number of this process and how many processes there are, from the launcher's environment.
 *
 * 1. Read once, in this order: BRIM_RANK (brim's own launcher), RANK (torchrun), OMPI_COMM_WORLD_RANK
 *    (mpirun), SLURM_PROCID (srun). The inner launcher wins: mpirun inside a SLURM job counts as mpirun.
 * 2. If nothing is set, the process is alone. A batch script that srun did not start is alone, too, although
 *    SLURM tells the script how many tasks its job may have.
 * 3. MASTER_ADDR and MASTER_PORT win over derived values. */
#ifndef COMM_PLACE_H
#define COMM_PLACE_H

enum { PLACE_HOST = 256 };

typedef struct {
    int         rank, world;
    int         local_rank;       /* among the processes of this machine: which GPU to take */
    char        host[PLACE_HOST]; /* where rank 0 listens */
    int         port;
    const char *launcher; /* whose variables these are; "" when alone */
} Place;

/* Negative after err_user() naming the variable that makes no sense. */
int place_find(Place *p);

/* "node[03-05,07],login" -> "node03". Negative when it does not fit or is not such a list. */
int place_first_host(const char *list, char *out, int n);

#endif
