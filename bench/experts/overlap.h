/* What the overlap measurement collects (overlap.c), from running engines (overlap_arm.c), what
 * that comes to (overlap_figures.c) and how it is told (overlap_report.c).
 *
 * A cell is a number of threads and a speed of the drive. Three engines take turns in it, token by
 * token: one whose expert cache holds everything (compute alone), one that waits for experts where
 * they are chosen (sync), one where they are due (staged). All times are milliseconds a token.
 */
#ifndef VF_BENCH_EXPERTS_OVERLAP_H
#define VF_BENCH_EXPERTS_OVERLAP_H

#include "bench/report/report.h"
#include "common/model/program.h"
#include "coordinator/scheduler.h"

#define OVERLAP_WARM_UP   3u
#define OVERLAP_PROMPT    8u
#define OVERLAP_CELLS_MAX 32u
#define OVERLAP_READS_MAX 8u

struct overlap_options {
    const char *model;
    const char *threads_text, *reads_text; /* lists; threads NULL: where there are CPUs */
    uint32_t *threads;
    size_t thread_count;
    double reads[OVERLAP_READS_MAX]; /* reads over compute; 0: the drive as it is */
    size_t read_count;
    uint32_t tokens;
    uint64_t cache_bytes; /* of sync and staged */
    int tier;
};

/* What the model says without being run. */
struct overlap_model {
    uint32_t vocab;
    uint32_t read_layers;  /* with experts */
    uint64_t record_bytes; /* of an expert */
    uint64_t read_bytes;   /* a token's experts */
    uint64_t all_bytes;    /* of all experts */
    uint64_t cache_bytes;  /* that has next to no hits */
    /* Shares of a token's weight bytes: read before the first order for experts goes out, and from
     * the last layer's experts on. No read can be under way meanwhile. */
    double front, back;
};

enum overlap_arm_kind { OVERLAP_CACHED, OVERLAP_SYNC, OVERLAP_STAGED, OVERLAP_ARMS };
extern const char *const overlap_arm_names[OVERLAP_ARMS];

/* A running engine and its request. */
struct overlap_arm {
    enum overlap_arm_kind kind;
    struct vf_scheduler *scheduler;
    uint32_t *text; /* [OVERLAP_PROMPT + tokens + OVERLAP_WARM_UP]: prompt, then what it said */
    uint32_t said;
    double *ms, *stall_ms; /* [tokens] */
    uint64_t stall_ns;     /* as last read */
    uint64_t read_bytes;   /* likewise */
    float *rows;           /* [text, vocab]: what it scored its text with */
    uint32_t row_count;
    uint32_t vocab;
    bool ended;
    enum vf_code code;
    struct vf_err err;
};

/* Starts the engine. overlap_arm_close after a failure too. throttle: bytes a second, 0: none. */
enum vf_code overlap_arm_open(struct overlap_arm *arm, enum overlap_arm_kind kind,
                              const struct overlap_options *o, const struct overlap_model *m,
                              uint32_t threads, uint64_t throttle, struct vf_err *err);
void overlap_arm_close(struct overlap_arm *arm);
/* Begins the text anew; its first token is yet to come. */
enum vf_code overlap_arm_begin(struct overlap_arm *arm, uint32_t tokens, struct vf_err *err);
/* Until the next token is here; nothing is in flight afterwards. Takes the token's wait for experts
 * and what was read for it. */
enum vf_code overlap_arm_next(struct overlap_arm *arm, double *ms, double *stall_ms,
                              uint64_t *read_bytes, struct vf_err *err);
/* Scores the text into rows. */
enum vf_code overlap_arm_score(struct overlap_arm *arm, struct vf_err *err);

/* Of a token, as medians with the 10th and 90th percentile over the tokens, each of which is
 * measured in all three arms side by side. */
struct overlap_cell {
    uint32_t threads;
    double asked;                             /* reads over compute; 0: the drive as it is */
    double drive;                             /* bytes a second */
    double read_bytes[OVERLAP_ARMS];          /* means */
    struct bench_stat ms[OVERLAP_ARMS];       /* that of the cached arm is C */
    struct bench_stat stall_ms[OVERLAP_ARMS]; /* that of sync is IO */
    double latency_ms;              /* of a layer's reads: IO beyond the time of the bytes */
    double floor_ms;                /* IO_eff */
    struct bench_stat hidden;       /* share of IO */
    struct bench_stat win;          /* sync over staged */
    struct bench_stat model, off;   /* (C + IO) / max(C, IO_eff); what the win is over it, less 1 */
    struct bench_stat interference; /* staged's compute over C, less 1 */
    double model_taxed, off_taxed;  /* medians of the same with C (1 + interference) */
};

/* Takes the arms' samples; threads, asked, drive and the sums of bytes in read_bytes are given. */
void overlap_summarise(const struct overlap_arm *arms, const struct overlap_model *m,
                       uint32_t tokens, double *scratch, struct overlap_cell *cell);

void overlap_report(struct bench_report *r, const struct overlap_options *o,
                    const struct overlap_model *m, const struct overlap_cell *cells, size_t count);

#endif
