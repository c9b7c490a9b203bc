/* The head: logits of the rows that are wanted, then log-probabilities.
 *
 * The vocabulary is split at fixed positions (VOCAB_CHUNK) for the sums of the softmax, so that
 * threads share the work and the order of additions never changes.
 */
#include "stage_worker/head.h"

#include "common/base/util.h"
#include "stage_worker/weights.h"

#include <math.h>
#include <string.h>

#define VOCAB_CHUNK 4096u
#define CHUNKS_MAX  64u /* larger vocabularies take larger chunks, still at fixed positions */

struct readout {
    struct core *core;
    float *logits; /* [rows, flows, vocabulary] */
    uint32_t chunk, chunks;
    uint32_t row;
    float max[VF_FLOWS_MAX][CHUNKS_MAX], sum[VF_FLOWS_MAX][CHUNKS_MAX];
    float row_max[VF_FLOWS_MAX], log_sum[VF_FLOWS_MAX];
    double exp_sum[CHUNKS_MAX], square_sum[CHUNKS_MAX];
    float log_alpha, log_rest; /* of the mixture */
    uint32_t flows;
};

static float *logits_of(const struct readout *j, uint32_t flow)
{
    return j->logits + ((size_t)j->row * j->flows + flow) * j->core->config->vocab_size;
}

static uint32_t chunk_length(const struct readout *j, uint32_t chunk)
{
    uint32_t begin = chunk * j->chunk, v = j->core->config->vocab_size;
    return v - begin < j->chunk ? v - begin : j->chunk;
}

static void chunk_max(struct readout *j, uint32_t item)
{
    uint32_t chunk = item % j->chunks, flow = item / j->chunks, n = chunk_length(j, chunk);
    float *z = logits_of(j, flow) + (size_t)chunk * j->chunk;
    if (j->core->config->final_softcap > 0.0f)
        j->core->kernels->softcap(j->core->config->final_softcap, n, z);
    j->max[flow][chunk] = j->core->kernels->max(z, n);
}

static bool mixes(const struct readout *j)
{
    return j->flows > 1 && j->core->config->flow_readout == VF_READOUT_MIXTURE;
}

/* The chunk's part of the row that is written in the end. */
static float *row_of(const struct readout *j, uint32_t chunk)
{
    return j->core->step.rows + (size_t)j->row * j->core->config->vocab_size +
           (size_t)chunk * j->chunk;
}

/* A mixture leaves exp(z - max) of flow 0 in the row, for chunk_squares. */
static void chunk_sum(struct readout *j, uint32_t item)
{
    uint32_t chunk = item % j->chunks, flow = item / j->chunks;
    float *exps = mixes(j) && flow == 0 ? row_of(j, chunk) : NULL;
    j->sum[flow][chunk] = j->core->kernels->exp_sum(logits_of(j, flow) + (size_t)chunk * j->chunk,
                                                    j->row_max[flow], chunk_length(j, chunk), exps);
}

static float log_p(const struct readout *j, uint32_t flow, uint32_t v)
{
    return (logits_of(j, flow)[v] - j->row_max[flow]) - j->log_sum[flow];
}

/* log q: the mean of several auxiliary flows' probabilities. */
static float log_q(const struct readout *j, uint32_t v)
{
    float max = -INFINITY, sum = 0.0f;
    for (uint32_t f = 1; f < j->flows; f++)
        max = fmaxf(max, log_p(j, f, v));
    if (max == -INFINITY)
        return max;
    for (uint32_t f = 1; f < j->flows; f++)
        sum += vf_expf(log_p(j, f, v) - max);
    return max + vf_logf(sum / (float)(j->flows - 1));
}

static void chunk_squares(struct readout *j, uint32_t chunk)
{
    const float *exps = row_of(j, chunk);
    double sum = 0.0, squares = 0.0;
    for (uint32_t i = 0; i < chunk_length(j, chunk); i++) {
        double e = exps[i];
        sum += e;
        squares += e * e;
    }
    j->exp_sum[chunk] = sum;
    j->square_sum[chunk] = squares;
}

static void write_log_p(const struct readout *j, uint32_t flow, uint32_t chunk, float *out)
{
    j->core->kernels->log_softmax(logits_of(j, flow) + (size_t)chunk * j->chunk, j->row_max[flow],
                                  j->log_sum[flow], chunk_length(j, chunk), out);
}

static void write_log_q(const struct readout *j, uint32_t chunk, float *out)
{
    if (j->flows == 2) {
        write_log_p(j, 1, chunk, out);
        return;
    }
    for (uint32_t i = 0; i < chunk_length(j, chunk); i++)
        out[i] = log_q(j, chunk * j->chunk + i);
}

static void chunk_write(struct readout *j, uint32_t chunk)
{
    float *out = row_of(j, chunk), *logits = logits_of(j, 0) + (size_t)chunk * j->chunk;
    if (mixes(j) && j->log_alpha < 0.0f) {
        write_log_q(j, chunk, out);
        write_log_p(j, 0, chunk, logits);
        j->core->kernels->log_add_exp(logits, j->log_alpha, out, j->log_rest,
                                      chunk_length(j, chunk), out);
    } else if (j->flows > 1 && j->core->config->flow_readout == VF_READOUT_AUXILIARY) {
        write_log_q(j, chunk, out);
    } else {
        write_log_p(j, 0, chunk, out);
    }
}

/* ---- loops over chunks, of every flow or of the row ---- */

typedef void chunk_fn(struct readout *j, uint32_t item);

static void run_chunks(const struct region_job *job, uint32_t begin, uint32_t end, uint32_t thread)
{
    (void)thread;
    struct readout *j = job->ctx;
    static chunk_fn *const parts[] = {chunk_max, chunk_sum, chunk_squares, chunk_write};
    for (uint32_t i = begin; i < end; i++)
        parts[job->index](j, i);
}

enum part { MAX, SUM, SQUARES, WRITE };
static void run_part(struct readout *j, enum part part, uint32_t items)
{
    region_add(&j->core->work.region, (struct region_job){.run = run_chunks,
                                                          .ctx = j,
                                                          .index = part,
                                                          .item_count = items,
                                                          .item_cost = 8ull * j->chunk});
    work_run(&j->core->work);
}

/* alpha = clip(sum p^2, 0.5, 1); log_alpha == 0 means that flow 0 alone speaks. */
static void find_alpha(struct readout *j)
{
    run_part(j, SQUARES, j->chunks);
    double sum = 0.0, squares = 0.0;
    for (uint32_t i = 0; i < j->chunks; i++) {
        sum += j->exp_sum[i];
        squares += j->square_sum[i];
    }
    double rest = 1.0 - squares / (sum * sum);
    rest = rest > 0.5 ? 0.5 : rest < 0.0 ? 0.0 : rest;
    j->log_alpha = rest > 0.0 ? vf_logf((float)(1.0 - rest)) : 0.0f;
    j->log_rest = rest > 0.0 ? vf_logf((float)rest) : -INFINITY;
}

static void read_out(struct readout *j)
{
    run_part(j, MAX, j->chunks * j->flows);
    for (uint32_t f = 0; f < j->flows; f++) {
        j->row_max[f] = -INFINITY;
        for (uint32_t i = 0; i < j->chunks; i++)
            if (j->max[f][i] > j->row_max[f] || isnan(j->max[f][i]))
                j->row_max[f] = j->max[f][i];
    }
    run_part(j, SUM, j->chunks * j->flows);
    for (uint32_t f = 0; f < j->flows; f++) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < j->chunks; i++)
            sum += j->sum[f][i];
        j->log_sum[f] = vf_logf(sum);
    }
    if (mixes(j))
        find_alpha(j);
    run_part(j, WRITE, j->chunks);
}

/* Flows that don't speak may say what they like. */
static bool is_finite(const struct readout *j)
{
    uint32_t flows = j->core->config->flow_readout == VF_READOUT_PRIMARY ? 1 : j->flows;
    for (uint32_t f = 0; f < flows; f++)
        if (!isfinite(j->row_max[f]) || !isfinite(j->log_sum[f]))
            return false;
    return true;
}

enum vf_code head_init(void *self, struct core *core, struct vf_err *err)
{
    (void)err;
    struct head *h = self;
    h->core = core;
    h->space = core->space.head;
    h->acts.space = h->space.acts;
    enum vf_tensor_kind kind = core->config->tie_embeddings ? VF_T_EMBED : VF_T_HEAD;
    h->matrix = weights_matrix(core->p.file, kind, VF_LAYER_NONE, 0);
    return VF_OK;
}

/* Gathers the wanted rows' columns of x, each row's flows behind each other. */
static void gather(struct head *h, const float *x)
{
    const struct step *step = &h->core->step;
    size_t flows = h->core->flows, stride = h->core->stride, row = 0;
    for (uint32_t c = 0; c < step->n_primary; c++) {
        if (!step->columns[c].want_row)
            continue;
        float *in = h->space.in + row * flows * stride;
        memcpy(in, x + c * stride, stride * sizeof *x);
        for (uint32_t a = step->n_primary; a < step->n_col; a++)
            if (step->columns[a].primary == c)
                memcpy(in + step->columns[a].flow * stride, x + a * stride, stride * sizeof *x);
        row++;
    }
}

void head_run(void *self, const struct vf_op *op)
{
    struct head *h = self;
    struct core *core = h->core;
    const struct vf_config *c = core->config;
    h->not_finite = false;
    if (core->step.row_count == 0)
        return;
    gather(h, value_in(core, op_input(core, op, 0)));
    uint32_t n = core->step.row_count * core->flows;
    work_add_acts(&core->work, &h->acts, h->space.in, n, c->hidden_size, core->stride);
    work_run(&core->work);
    struct matmul mm = {
        .m = h->matrix, .acts = h->acts.view, .y = h->space.out, .y_stride = c->vocab_size};
    work_add_matmul(&core->work, &mm);
    work_run(&core->work);
    struct readout j = {.core = core, .logits = h->space.out, .flows = core->flows};
    j.chunk = VOCAB_CHUNK;
    while (vf_div_up(c->vocab_size, j.chunk) > CHUNKS_MAX)
        j.chunk *= 2;
    j.chunks = (uint32_t)vf_div_up(c->vocab_size, j.chunk);
    for (j.row = 0; j.row < core->step.row_count; j.row++) {
        read_out(&j);
        h->not_finite |= !is_finite(&j);
    }
}
