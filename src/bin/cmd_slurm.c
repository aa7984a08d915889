/* brim slurm RECIPE: writes the script that trains a recipe as a job of SLURM.
 *
 * 1. SLURM says USR1 some time before a job's time is up, and TERM when a job has to make room. Brim saves on
 *    both, and ends with exit code 0.
 * 2. If the run is not at its end then, the script queues the same job again, which goes on from there. A job
 *    that was cancelled stays cancelled. One that made no step is not queued again: it would be for ever. */
#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "bin/run_target.h"
#include "bin/tasks.h"
#include "run/setup.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* SLURM reads its own lines without a shell's quotes. */
static const char not_bare[] = " \t\n\"'\\#";

typedef struct {
    const char *out, *nodes, *gpus, *cpus, *time, *before, *partition, *account;
    int64_t     n_node, n_gpu, n_rank, n_cpu, before_s;
} Flags;

/* One word for a shell, whatever is in it. */
static void print_word(FILE *out, const char *text)
{
    fputc('\'', out);
    for (const char *s = text; *s; s++) {
        if (*s == '\'') {
            fputs("'\\''", out);
        } else {
            fputc(*s, out);
        }
    }
    fputc('\'', out);
}

static void print_directive(FILE *out, const char *key, const char *value)
{
    if (value) fprintf(out, "#SBATCH --%s=%s\n", key, value);
}

static void print_head(FILE *out, const Recipe *r, const Flags *f, const char *dir)
{
    fprintf(out, "#!/bin/bash\n#SBATCH --job-name=%s\n", strpbrk(r->run, not_bare) ? "brim" : r->run);
    fprintf(out, "#SBATCH --nodes=%lld\n", (long long)f->n_node);
    fprintf(out, "#SBATCH --ntasks-per-node=%lld\n", (long long)f->n_rank);
    if (f->n_gpu > 0) fprintf(out, "#SBATCH --gpus-per-node=%lld\n", (long long)f->n_gpu);
    fprintf(out, "#SBATCH --cpus-per-task=%lld\n", (long long)f->n_cpu);
    print_directive(out, "partition", f->partition);
    print_directive(out, "account", f->account);
    print_directive(out, "time", f->time);
    fprintf(out, "#SBATCH --signal=USR1@%lld\n", (long long)f->before_s);
    fprintf(out, "#SBATCH --requeue\n#SBATCH --open-mode=append\n#SBATCH --output=%%x-%%j.txt\n");
    fprintf(out, "#SBATCH --chdir=%s\n", dir);
}

static void print_command(FILE *out, const char *exe, const char *command)
{
    print_word(out, exe);
    fprintf(out, " %s ", command);
}

/* Shell functions: what the run's numbers say now. */
static void print_questions(FILE *out, const Recipe *r, const char *exe)
{
    fprintf(out, "\nsay() { ");
    print_command(out, exe, "compare");
    print_word(out, r->run);
    fprintf(out, " --json; }\n"
                 "step() { say 2>/dev/null | grep -o '\"step\": [0-9]*'; }\n"
                 "before=$(step)\n");
}

/* SLURM 22.05 and later do not hand --cpus-per-task on to srun: each rank would get one CPU. srun starts all
 * ranks. Where it starts a single one, brim train would start `gpus` of them. */
static void print_body(FILE *out, const Recipe *r, const CmdTarget *t, const Flags *f, const char *exe)
{
    print_questions(out, r, exe);
    fprintf(out, "\nsrun --kill-on-bad-exit=1 --cpus-per-task=%lld ", (long long)f->n_cpu);
    print_command(out, exe, "train");
    print_word(out, t->target);
    for (int i = 0; i < t->n_override; i++) {
        fputc(' ', out);
        print_word(out, t->override[i]);
    }
    if (r->gpus > 1 && f->n_node * f->n_rank == 1) fputs(" gpus=1", out);
    fprintf(out, "\nrc=$?\n\n"
                 "# The time was up, or the job had to make room: the same job goes on later. A job that "
                 "was cancelled\n# does not.\n"
                 "if [ $rc -eq 0 ] && scontrol show job \"$SLURM_JOB_ID\" | grep -q 'JobState=RUNNING' &&\n"
                 "    say | grep -q '\"state\": \"stopped\"'; then\n"
                 "    if [ \"$(step)\" = \"$before\" ]; then\n"
                 "        echo 'not queued again: no step was done (is --time too short?)' >&2\n"
                 "    else\n"
                 "        scontrol requeue \"$SLURM_JOB_ID\"\n"
                 "    fi\n"
                 "fi\nexit $rc\n");
}

static int write_script(FILE *out, const Recipe *r, const CmdTarget *t, const Flags *f)
{
    char    dir[PATH_MAX], exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n < 0) return err_sys("where this program is");
    exe[n] = '\0';
    if (!getcwd(dir, sizeof dir)) return err_sys("the current folder");
    if (strpbrk(dir, not_bare))
        return err_user("command line: slurm: the current folder has characters that SLURM's lines cannot "
                        "have: %s",
                        dir);
    print_head(out, r, f, dir);
    print_body(out, r, t, f, exe);
    return ferror(out) ? err_sys("writing the script") : 0;
}

/* The seconds of a time as SLURM writes it: minutes[:seconds], hours:minutes:seconds or
 * days-hours[:minutes[:seconds]]; -1: it is none. */
static int64_t time_s(const char *text)
{
    static const int64_t unit[] = { 86400, 3600, 60, 1 };
    int64_t              part[ARRAY_LEN(unit)], sum = 0;
    int                  n = 0, has_days = 0;
    for (const char *s = text;; s++) {
        size_t n_digit = strspn(s, "0123456789");
        if (n_digit == 0 || n_digit > 9 || n == (int)ARRAY_LEN(unit)) return -1;
        part[n++] = strtoll(s, NULL, 10);
        s += n_digit;
        if (!*s) break;
        if (*s == '-' ? n > 1 : *s != ':') return -1;
        has_days |= *s == '-';
    }
    if (!has_days && n == (int)ARRAY_LEN(unit)) return -1;
    int first = has_days ? 0 : n == 3 ? 1 : 2;
    for (int i = 0; i < n; i++) sum += part[i] * unit[first + i];
    return sum;
}

/* A start that is told to stop at once would save and be queued again for ever. SLURM may send its signal a
 * minute early. A limit of 0 is none. */
static int check_time(const Flags *f)
{
    int64_t limit_s = time_s(f->time), most_s = limit_s - 60;
    if (limit_s < 0)
        return err_user("command line: --time: '%s' is no time such as 90, 24:00:00 or 2-12", f->time);
    if (limit_s == 0 || f->before_s < most_s) return 0;
    if (most_s < 2)
        return err_user("command line: --time: %s leaves no time to train (--time 10 would do)", f->time);
    return err_user("command line: --before: %lld seconds before the end of --time %s leave no time to train "
                    "(--before %lld would do)",
                    (long long)f->before_s, f->time, (long long)most_s / 2);
}

static int read_numbers(Flags *f, const Recipe *r)
{
    f->n_node   = 1;
    f->n_gpu    = strcmp(r->device, "cpu") == 0 ? 0 : MAX(r->gpus, 1);
    f->n_cpu    = 8;
    f->before_s = 180;
    f->n_rank   = MAX(r->gpus, 1);
    if (f->nodes) TRY(cmd_int("--nodes", f->nodes, 1, 65536, &f->n_node));
    if (f->gpus) TRY(cmd_int("--gpus", f->gpus, 0, 64, &f->n_gpu));
    if (f->n_gpu > 0) f->n_rank = f->n_gpu;
    if (f->cpus) TRY(cmd_int("--cpus", f->cpus, 1, 4096, &f->n_cpu));
    if (f->before) TRY(cmd_int("--before", f->before, 1, 65535, &f->before_s));
    if (!f->time) f->time = "24:00:00";
    TRY(check_time(f));
    for (int i = 0; i < 2; i++) {
        const char *name = i ? f->account : f->partition;
        if (name && (!name[0] || strpbrk(name, not_bare)))
            return err_user("command line: --%s: '%s' is no such name", i ? "account" : "partition", name);
    }
    return 0;
}

int cmd_slurm(const CmdArgs *a)
{
    Flags     f      = { 0 };
    CmdFlag   flag[] = { { "--nodes", &f.nodes, NULL, "machines; 1 unless said" },
                         { "--gpus", &f.gpus, NULL,
                           "of each machine, one rank a GPU; gpus of the recipe, or 1" },
                         { "--cpus", &f.cpus, NULL, "of each rank, which load and compute; 8 unless said" },
                         { "--time", &f.time, NULL, "limit of one start, as SLURM writes it; 24:00:00" },
                         { "--before", &f.before, NULL, "seconds before that when the run saves; 180" },
                         { "--partition", &f.partition, NULL, "of SLURM" },
                         { "--account", &f.account, NULL, "of SLURM" },
                         { "--out", &f.out, NULL, "the file to write; else standard output" } };
    CmdTarget t;
    Recipe    r, share;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    TRY(cmd_need_recipe(&t));
    TRY(run_target_refuse(t.target, "slurm"));
    TRY(recipe_load_without_data(&r, t.target, t.n_override, t.override));
    TRY(task_complete(&r, DATA_ELSEWHERE));
    TRY(read_numbers(&f, &r));
    TRY(setup_share(&share, &r, (int)(f.n_node * f.n_rank)));
    TRY(cmd_out_file("--out", f.out));
    FILE *out = f.out ? fopen(f.out, "w") : stdout;
    if (!out) return err_sys("%s", f.out);
    int rc = write_script(out, &r, &t, &f);
    if (!f.out) return rc;
    if (fclose(out) != 0 && rc == 0) rc = err_sys("%s", f.out);
    if (rc < 0) {
        unlink(f.out);
    } else {
        chmod(f.out, 0755);
        printf("%s: sbatch %s\n", f.out, f.out);
    }
    return rc;
}
