/* The streamed expert source: orders experts from the I/O workers and hands out pinned slots of the
 * shared cache. One of the two implementations of expert_source.h.
 *
 * fetch sends the experts that have no slot yet to their I/O workers (a PUSH socket each) and never
 * waits for them. acquire waits for as little as it can; it checks about twenty times a second that
 * the I/O workers it waits for are alive. One that died is expected to be started again: what it
 * was reading is ordered from its successor, and only when none comes acquire fails. A caller that
 * holds pins from one acquire while it waits in the next may wait for itself when the cache is
 * small: release first.
 */
#ifndef VF_STAGE_WORKER_EXPERT_SOURCE_STREAM_H
#define VF_STAGE_WORKER_EXPERT_SOURCE_STREAM_H

#include "common/experts/bank.h"
#include "common/experts/cache_reader.h"
#include "common/run/run_dir.h"
#include "common/run/run_state.h"
#include "stage_worker/expert_source.h"

#define VF_EXPERT_REVIVE_NS  VF_S(10) /* for a dead I/O worker's successor to start */
#define VF_EXPERT_TIMEOUT_NS VF_S(60) /* a drive that needs longer for one record is broken */

struct vf_expert_stream_params {
    void *zmq_context;
    const struct vf_run_dir *run_dir;  /* borrowed during create only */
    const struct vf_expert_bank *bank; /* copied; what it points to must outlive the source */
    const struct vf_model_file
        *file;           /* whose experts they are; NULL: their numbers aren't looked at */
    uint32_t process;    /* index of this stage worker: whose pins these are */
    uint32_t epoch;      /* of the plan; goes into every order */
    uint64_t timeout_ns; /* of one acquire; 0: VF_EXPERT_TIMEOUT_NS */
    uint64_t revive_ns;  /* 0: VF_EXPERT_REVIVE_NS */
    /* NULL, or borrowed: once the run ends acquire waits no longer (VF_ERR_PEER_LOST). */
    const struct vf_run_state *run_state;
};

/* Opens the run's expert cache and connects to its I/O workers (which may start later). Pins that
 * an earlier process of this index left are released. */
enum vf_code vf_expert_source_stream(const struct vf_expert_stream_params *params,
                                     struct vf_expert_source **out, struct vf_err *err);

#endif
