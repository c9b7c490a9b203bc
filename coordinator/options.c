#include "coordinator/options.h"

#include "common/base/log.h"
#include "common/experts/cache.h"
#include "common/model/placement.h"

#include <string.h>

static const char *const activation_words[] = {"q8", "f32", NULL};
#define ACTIVATIONS_F32 1
static const char *const kernel_words[] = {"auto", "scalar", "avx2", "avx512", "vnni", NULL};
static const char *const kv_words[] = {"f16", "f32", NULL};
static const char *const overlap_words[] = {"staged", "sync", NULL};
static const char *const speculate_words[] = {"auto", "on", "off", NULL};
static const char *const io_words[] = {"direct", "buffered", NULL};
static const char *const weights_words[] = {"mmap", "huge", NULL};
static const char *const experts_words[] = {"auto", "resident", "stream", NULL};
static const char *const placement_words[] = {"pipeline", NULL};

#define THREADS_MAX     1024
#define BATCH_MAX       1024
#define CHUNK_MAX       4096 /* a step message stays small beside VF_WIRE_MESSAGE_MAX */
#define CHUNK_DEFAULT   256
#define IO_DEPTH_MAX    256
#define VERBOSE_MAX     2
#define MEMORY_MAX      9.2e18
#define IO_THROTTLE_MAX 1e12

void vf_run_options_init(struct vf_run_options *o, uint32_t batch)
{
    *o = (struct vf_run_options){
        .kv = -1,
        .batch = batch,
        .prefill_chunk = CHUNK_DEFAULT,
    };
}

size_t vf_run_options_table(struct vf_run_options *o, struct vf_opt *opts)
{
    const struct vf_opt table[] = {
        {"model", 'm', VF_OPT_STRING, &o->model, "FILE", "the .vflow or .cflow file", 0, 0, NULL},
        {"activations", 0, VF_OPT_CHOICE, &o->activations, NULL,
         "precision of activations (q8: fast)", 0, 0, activation_words},
        {"threads", 't', VF_OPT_INT, &o->threads, "N",
         "threads of each stage worker (default: the cores of a node)", 1, THREADS_MAX, NULL},
        {"stage-workers", 0, VF_OPT_INT, &o->stage_workers, "N",
         "processes that share the layers (default: one per NUMA node)", 1, VF_STAGE_WORKERS_MAX,
         NULL},
        {"io-workers", 0, VF_OPT_INT, &o->io_workers, "N",
         "processes that read experts, when these are streamed (default 1)", 1,
         VF_CACHE_IO_WORKERS_MAX, NULL},
        {"placement", 0, VF_OPT_CHOICE, &o->placement, NULL,
         "how operations are spread over stage workers", 0, 0, placement_words},
        {"weights", 0, VF_OPT_CHOICE, &o->weights, NULL,
         "mapped from the page cache, or copied into huge pages (mmap)", 0, 0, weights_words},
        {"experts", 0, VF_OPT_CHOICE, &o->experts, NULL,
         "all in memory, or streamed from the drive (auto: what fits --memory)", 0, 0,
         experts_words},
        {"memory", 0, VF_OPT_SIZE, &o->memory, "SIZE",
         "all processes together stay below this (default: what is available)", 1, MEMORY_MAX,
         NULL},
        {"expert-cache", 0, VF_OPT_SIZE, &o->expert_cache, "SIZE",
         "memory for streamed experts (default: what --memory leaves)", 1, MEMORY_MAX, NULL},
        {"io", 0, VF_OPT_CHOICE, &o->io, NULL, "how experts are read", 0, 0, io_words},
        {"expert-bank", 0, VF_OPT_STRING, &o->expert_bank, "DIR,DIR",
         "where vflow-convert --split-bank put the experts (default: the model file)", 0, 0, NULL},
        {"io-depth", 0, VF_OPT_INT, &o->io_depth, "N",
         "reads in flight per I/O worker (default: what a probe of the drive finds)", 1,
         IO_DEPTH_MAX, NULL},
        {"io-throttle", 0, VF_OPT_SIZE, &o->io_throttle, "SIZE",
         "bytes a second of each I/O worker at most, for experiments", 1, IO_THROTTLE_MAX, NULL},
        {"overlap", 0, VF_OPT_CHOICE, &o->overlap, NULL,
         "wait for experts where they are due, or where they are chosen", 0, 0, overlap_words},
        {"speculate", 0, VF_OPT_CHOICE, &o->speculate, NULL,
         "let an idle drive read guesses of the next layers' experts (auto: while it pays)", 0, 0,
         speculate_words},
        {"kernel", 0, VF_OPT_CHOICE, &o->kernel, NULL, "instruction set", 0, 0, kernel_words},
        {"kv", 0, VF_OPT_CHOICE, &o->kv, NULL,
         "precision of the KV cache (default: f32 with f32 activations, else f16)", 0, 0, kv_words},
        {"ctx", 0, VF_OPT_INT, &o->ctx, "N",
         "positions of a sequence (default: the model's, at most 4096)", 1, VF_CONTEXT_MAX, NULL},
        {"batch", 0, VF_OPT_INT, &o->batch, "N", "sequences computed together", 1, BATCH_MAX, NULL},
        {"prefill-chunk", 0, VF_OPT_INT, &o->prefill_chunk, "N",
         "positions of a prompt per step (default 256)", 1, CHUNK_MAX, NULL},
        {"verbose", 'v', VF_OPT_COUNT, &o->verbosity, NULL, "say more on stderr; twice: much more",
         0, 0, NULL},
    };
    const size_t n = sizeof table / sizeof table[0];
    VF_ASSERT(n == VF_RUN_OPTION_COUNT);
    memcpy(opts, table, sizeof table);
    return n;
}

enum vf_code vf_run_options_check(const struct vf_run_options *o, struct vf_err *err)
{
    int level = VF_LOG_WARN + (o->verbosity < VERBOSE_MAX ? o->verbosity : VERBOSE_MAX);
    vf_log_init("coordinator", (enum vf_log_level)level);
    if (!o->model || !*o->model)
        return vf_err_set(err, VF_ERR_USAGE, "--model is %s: which file?",
                          o->model ? "empty" : "missing");
    if (o->expert_cache && o->experts == VF_EXPERTS_RESIDENT)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--expert-cache is for streamed experts, --experts resident was given");
    return VF_OK;
}

void vf_run_options_engine(const struct vf_run_options *o, bool scores, int cancel_fd,
                           struct vf_engine_params *out)
{
    *out = (struct vf_engine_params){
        .model_path = o->model,
        .kernel = kernel_words[o->kernel],
        .activations = activation_words[o->activations],
        .kv = kv_words[o->kv >= 0 ? o->kv : o->activations == ACTIVATIONS_F32],
        .overlap = overlap_words[o->overlap],
        .io = io_words[o->io],
        .speculate = speculate_words[o->speculate],
        .weights = weights_words[o->weights],
        .experts = (enum vf_experts_mode)o->experts,
        .expert_cache_bytes = o->expert_cache,
        .memory_bytes = o->memory,
        .threads = (uint32_t)o->threads,
        .stage_workers = (uint32_t)o->stage_workers,
        .io_workers = (uint32_t)o->io_workers,
        .context = (uint32_t)o->ctx,
        .sequences = (uint32_t)o->batch,
        .prefill_chunk = (uint32_t)o->prefill_chunk,
        .queue_depth = (uint32_t)o->io_depth,
        .io_throttle = o->io_throttle,
        .expert_bank = o->expert_bank,
        .verbosity = o->verbosity,
        .scores = scores,
        .cancel_fd = cancel_fd,
    };
}
