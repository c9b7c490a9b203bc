/* vflow-bench: measurements of the engine and its parts, each a table and, with --json, one object.
 *
 * Ratios are measured side by side in one run: the arms alternate, and medians are compared. Tools
 * link the roles they measure and run them in this process, without sockets.
 */
#ifndef VF_BENCH_BENCH_H
#define VF_BENCH_BENCH_H

#include "common/base/err.h"
#include "common/model/config.h"

#include <stddef.h>
#include <stdint.h>

/* The commands (command.h). */
struct bench_command;
extern const struct bench_command bench_make_model, bench_ceiling, bench_matvec, bench_layout,
    bench_layout_pass, bench_fused, bench_prefetch, bench_hop, bench_decode, bench_flows,
    bench_formats, bench_workers, bench_drive, bench_overlap, bench_record, bench_replay;

/* Named geometries for make-model. NULL-terminated. */
struct bench_geometry {
    const char *name;
    const char *config; /* a config.json */
};
extern const struct bench_geometry bench_geometries[];

/* A geometry's config by name, with the name's fault as VF_ERR_USAGE. */
enum vf_code bench_geometry_config(const char *name, struct vf_config *out, struct vf_err *err);
/* Writes random weights of a config as a model file; deterministic in seed. routing as routing.h
 * says, NULL for plain random weights. */
enum vf_code bench_write_model(const struct vf_config *config, const char *path, int format,
                               int quant, const char *routing, uint64_t seed, struct vf_err *err);

/* Order statistics over n samples, which are sorted in place. */
double bench_median(double *samples, size_t n);
double bench_quantile(double *samples, size_t n, double q);
struct bench_stat { /* a median with the ends of its samples */
    double median, low, high;
};
struct bench_stat bench_stat_of(double *samples, size_t n);

#endif
