#include "stage_worker/step.h"

static bool column_fits(const struct vf_executor_params *p, const struct vf_step *step, uint32_t i,
                        uint32_t flow_before)
{
    const struct vf_config *c = vf_model_file_config(p->file);
    const struct vf_column *col = &step->columns[i];
    bool primary_fits = col->flow == 0
                            ? col->primary == i
                            : col->primary < i && step->columns[col->primary].flow == 0 &&
                                  step->columns[col->primary].position == col->position &&
                                  step->columns[col->primary].sequence == col->sequence;
    return col->token < c->vocab_size && col->position < p->context &&
           col->sequence < p->sequences && col->flow < c->flow_count && col->flow >= flow_before &&
           primary_fits && !(col->want_row && col->flow != 0);
}

static enum vf_code check_columns(const struct vf_executor_params *p, const struct vf_step *step,
                                  struct vf_err *err)
{
    uint32_t flow = 0;
    for (uint32_t i = 0; i < step->column_count; i++) {
        const struct vf_column *col = &step->columns[i];
        if (!column_fits(p, step, i, flow))
            return vf_err_set(err, VF_ERR_PROTOCOL,
                              "step %llu column %u is out of place: token %u, position %u, "
                              "sequence %u, flow %u, primary %u",
                              (unsigned long long)step->id, i, col->token, col->position,
                              col->sequence, col->flow, col->primary);
        flow = col->flow;
    }
    return VF_OK;
}

/* Columns are in place. */
static enum vf_code check_rows(const struct vf_executor_params *p, const struct vf_step *step,
                               struct vf_err *err)
{
    uint32_t flows = vf_model_file_config(p->file)->flow_count, rows = 0, row_flows = 0;
    for (uint32_t i = 0; i < step->column_count; i++) {
        const struct vf_column *col = &step->columns[i];
        rows += col->want_row;
        row_flows += col->flow > 0 && step->columns[col->primary].want_row;
    }
    if (row_flows != rows * (flows - 1))
        return vf_err_set(err, VF_ERR_PROTOCOL,
                          "step %llu wants %u rows, but has %u auxiliary columns for them, not %u",
                          (unsigned long long)step->id, rows, row_flows, rows * (flows - 1));
    if (rows > p->rows_max)
        return vf_err_set(err, VF_ERR_PROTOCOL, "step %llu wants %u rows, allowed are %u",
                          (unsigned long long)step->id, rows, p->rows_max);
    return VF_OK;
}

enum vf_code step_check(const struct vf_executor_params *p, const struct vf_step *step,
                        struct vf_err *err)
{
    if (step->column_count == 0 || step->column_count > p->columns_max)
        return vf_err_set(err, VF_ERR_PROTOCOL, "step %llu has %u columns, allowed are 1 to %u",
                          (unsigned long long)step->id, step->column_count, p->columns_max);
    enum vf_code code = check_columns(p, step, err);
    return code == VF_OK ? check_rows(p, step, err) : code;
}

void step_set(struct step *s, const struct vf_step *step, uint32_t flows, float *rows)
{
    *s = (struct step){
        .id = step->id, .columns = step->columns, .n_col = step->column_count, .rows = rows};
    uint32_t c = 0;
    for (uint32_t j = 0; j < flows; j++) {
        s->flow_begin[j] = c;
        while (c < s->n_col && s->columns[c].flow == j)
            c++;
    }
    s->flow_begin[flows] = c;
    s->n_primary = flows > 1 ? s->flow_begin[1] : c;
    for (uint32_t i = 0; i < s->n_primary; i++)
        s->row_count += s->columns[i].want_row;
}
