/* What a decode measurement collects (decode.c) and how it is told (decode_report.c). */
#ifndef VF_BENCH_DECODE_DECODE_H
#define VF_BENCH_DECODE_DECODE_H

#include "bench/compute/read_probe.h"
#include "bench/decode/foreign.h"
#include "bench/decode/loaded.h"
#include "bench/report/report.h"

struct decode_options {
    const char *path;
    uint32_t threads, tokens, samples, prompt, chunk;
    int tier;
    bool ops, huge, foreign;
};

struct decode_sample {
    double token_ms; /* median of its tokens */
    double foreign_ms;
    double prefill_ms;         /* of the whole prompt */
    double read[VF_READ_WAYS]; /* GB/s of plain reads, medians of the probes between them */
};

struct decode_run {
    const struct decode_options *o;
    struct loaded model;
    struct rig probe;
    struct foreign foreign;
    struct decode_sample *samples;                                    /* [o->samples] */
    double decode_ns[VF_OP_KIND_COUNT], prefill_ns[VF_OP_KIND_COUNT]; /* of all samples */
    struct vf_executor_stats process;          /* while decoding undisturbed */
    double decode_wall_ns;                     /* the same, by the clock outside */
    uint64_t decoded;                          /* tokens behind these */
    double *token_ms, *probe_gb[VF_READ_WAYS]; /* scratch [o->tokens] */
    uint64_t *ops;                             /* scratch [op_count] */
};

void decode_report(const struct decode_run *run, struct bench_report *report);

#endif
