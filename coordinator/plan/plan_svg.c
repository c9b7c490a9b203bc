/* Draws the timeline of one token: time runs to the right in bytes read, an operation is a box as
 * wide as its bytes. Two panels share the scale: the placement as it runs, and the same program
 * with attention, dense and experts read side by side, which is where a delay shows.
 */
#include "coordinator/plan/plan_model.h"

#include "common/draw/svg.h"

#include <math.h>
#include <string.h>

#define MIB 1048576.0

/* Pixels. */
#define MARGIN_LEFT     150.0
#define MARGIN_RIGHT    40.0
#define HEAD_HEIGHT     96.0
#define PANEL_TITLE     30.0
#define LANE_HEIGHT     24.0
#define BOX_HEIGHT      18.0
#define WORKER_GAP      8.0
#define AXIS_HEIGHT     44.0
#define PANEL_GAP       26.0
#define WIDTH_PER_LAYER 72.0
#define PLOT_WIDTH_MIN  1000.0
#define PLOT_WIDTH_MAX  4800.0 /* many layers: boxes shrink and lose their labels instead */
#define LABEL_WIDTH     7.0    /* of a character, roughly */
#define TICK_PX         80.0   /* at least, between two ticks */

enum row { ROW_OTHER, ROW_ATTENTION, ROW_DENSE, ROW_EXPERTS, ROW_COUNT };

struct canvas {
    const struct vf_plan *plan;
    FILE *out;
    double plot_width, bytes_per_px;
    int row_index[ROW_COUNT]; /* -1: this model has no such row */
    int rows;
};

struct panel {
    const char *title;
    const struct vf_plan_timeline *time;
    bool by_worker; /* a block of rows for each worker; else one block */
    double top;     /* of the first row */
};

static enum row op_row(enum vf_op_kind kind)
{
    switch (vf_op_lane(kind)) {
    case VF_LANE_ATTENTION:
        return ROW_ATTENTION;
    case VF_LANE_DENSE:
        return ROW_DENSE;
    case VF_LANE_EXPERTS:
        return ROW_EXPERTS;
    default:
        return ROW_OTHER;
    }
}

static const char *op_class(enum vf_op_kind kind)
{
    static const char *const classes[ROW_COUNT] = {"other", "attention", "dense", "experts"};
    return kind == VF_OP_ROUTE ? "route" : classes[op_row(kind)];
}

static void init_canvas(struct canvas *c, const struct vf_plan *plan, FILE *out)
{
    bool present[ROW_COUNT] = {[ROW_OTHER] = true, [ROW_ATTENTION] = true};
    for (uint32_t i = 0; i < plan->program.op_count; i++)
        present[op_row(plan->program.ops[i].kind)] = true;
    *c = (struct canvas){.plan = plan, .out = out};
    for (int r = 0; r < ROW_COUNT; r++)
        c->row_index[r] = present[r] ? c->rows++ : -1;
    double width = plan->program.effective_layers * WIDTH_PER_LAYER;
    c->plot_width = fmin(fmax(width, PLOT_WIDTH_MIN), PLOT_WIDTH_MAX);
    c->bytes_per_px = fmax(plan->placed.total, plan->lanes.total) / c->plot_width;
}

static double x_of(const struct canvas *c, double bytes)
{
    return MARGIN_LEFT + bytes / c->bytes_per_px;
}

static double block_height(const struct canvas *c)
{
    return c->rows * LANE_HEIGHT + WORKER_GAP;
}

static uint32_t panel_blocks(const struct canvas *c, const struct panel *p)
{
    return p->by_worker ? c->plan->placement.worker_count : 1;
}

static double rows_bottom(const struct canvas *c, const struct panel *p)
{
    return p->top + panel_blocks(c, p) * block_height(c) - WORKER_GAP;
}

/* Middle of the row an op is drawn in. */
static double y_of(const struct canvas *c, const struct panel *p, uint32_t op)
{
    uint32_t block = p->by_worker ? c->plan->placement.op_worker[op] : 0;
    int row = c->row_index[op_row(c->plan->program.ops[op].kind)];
    return p->top + block * block_height(c) + (row + 0.5) * LANE_HEIGHT;
}

static void print_style(FILE *out)
{
    fputs("<style>\n"
          "text{font-family:system-ui,sans-serif;font-size:12px;fill:#222}\n"
          ".title{font-size:16px;font-weight:600}.panel{font-size:13px;font-weight:600}\n"
          ".small{font-size:11px;fill:#555}.in{font-size:11px;fill:#fff;text-anchor:middle}\n"
          ".row{fill:#f4f5f7}.axis{stroke:#999;stroke-width:1}.grid{stroke:#dcdfe4}\n"
          "rect.attention{fill:#3b6fb6}rect.dense{fill:#c77416}rect.experts{fill:#2f8f5b}\n"
          "rect.other{fill:#6b7280}rect.route{fill:#8b5cb8}\n"
          ".link{fill:none;stroke-width:1.2;opacity:.75}\n"
          ".dd{stroke:#8f4e06;stroke-dasharray:4 2}.read{stroke:#1d6b41;stroke-dasharray:4 2}\n"
          ".due{stroke:#1d6b41}.message{stroke:#b3261e;stroke-dasharray:1 2;stroke-width:1.6}\n"
          "</style>\n"
          "<defs><marker id=\"tip\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" markerWidth=\"5\" "
          "markerHeight=\"5\" orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" fill=\"#555\"/></marker>"
          "</defs>\n",
          out);
}

/* What a legend entry stands for occurs in this model. */
static bool has_row(const struct canvas *c, enum row r)
{
    return c->row_index[r] >= 0;
}

static double print_legend_box(const struct canvas *c, double x, double y, const char *kind,
                               const char *text)
{
    fprintf(c->out,
            "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"10\"/>"
            "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
            kind, x, y - 9, x + 19, y, text);
    return x + 40 + LABEL_WIDTH * (double)strlen(text);
}

static double print_legend_link(const struct canvas *c, double x, double y, const char *kind,
                                const char *text)
{
    fprintf(c->out,
            "<path class=\"link %s\" d=\"M%.1f %.1fh26\" marker-end=\"url(#tip)\"/>"
            "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
            kind, x, y - 4, x + 32, y, text);
    return x + 52 + LABEL_WIDTH * (double)strlen(text);
}

static void print_legend(const struct canvas *c, double y)
{
    const struct vf_config *config = c->plan->config;
    double x = print_legend_box(c, 16, y, "attention", "attention");
    if (has_row(c, ROW_DENSE))
        x = print_legend_box(c, x, y, "dense", "dense FFN");
    if (has_row(c, ROW_EXPERTS)) {
        x = print_legend_box(c, x, y, "experts", "experts");
        x = print_legend_box(c, x, y, "route", "router");
    }
    print_legend_box(c, x, y, "other", "embedding, norms, head");
    x = 16;
    if (has_row(c, ROW_DENSE) && config->dense_delay)
        x = print_legend_link(c, x, y + 18, "dd", "dense delay: older residual to FFN");
    if (has_row(c, ROW_EXPERTS) && config->expert_delay) {
        x = print_legend_link(c, x, y + 18, "read", "expert delay: routed, being read");
        x = print_legend_link(c, x, y + 18, "due", "expert delay: computed, not yet due");
    }
    if (c->plan->placement.edge_count)
        print_legend_link(c, x, y + 18, "message", "value sent to another worker");
}

static void print_head(const struct canvas *c)
{
    const struct vf_plan *p = c->plan;
    fprintf(c->out, "<text class=\"title\" x=\"16\" y=\"24\">");
    vf_svg_print_escaped(c->out, p->source);
    fprintf(c->out, "</text>\n<text class=\"small\" x=\"16\" y=\"42\">");
    vf_svg_print_escaped(c->out, vf_style_name(p->config->style));
    fprintf(c->out,
            ", delays: attention %u, dense %u, experts %u; %u layers, %s, %.2f MB read for a "
            "token; closed "
            "form at 0.5 bytes a weight: naive %.2f, critical %.2f MB/token; MB = 2^20 bytes, "
            "times at %.2f GB/s</text>\n",
            p->config->attention_delay, p->config->dense_delay, p->config->expert_delay,
            p->program.effective_layers, p->quant_name, (double)vf_plan_sum(p->token_bytes) / MIB,
            p->closed.naive / MIB, p->closed.critical / MIB, p->bandwidth_gb_s);
    print_legend(c, 66);
}

static void print_rows(const struct canvas *c, const struct panel *p)
{
    static const char *const names[ROW_COUNT] = {"rest", "attention", "dense FFN", "experts"};
    fprintf(c->out, "<text class=\"panel\" x=\"16\" y=\"%.1f\">%s</text>\n", p->top - 10, p->title);
    for (uint32_t b = 0; b < panel_blocks(c, p); b++) {
        double top = p->top + b * block_height(c);
        if (p->by_worker)
            fprintf(c->out, "<text x=\"16\" y=\"%.1f\">worker %u</text>\n", top + LANE_HEIGHT * 0.7,
                    b);
        for (int r = 0; r < ROW_COUNT; r++) {
            if (c->row_index[r] < 0)
                continue;
            double y = top + c->row_index[r] * LANE_HEIGHT;
            fprintf(c->out,
                    "<rect class=\"row\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>"
                    "<text class=\"small\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                    MARGIN_LEFT, y + 1, c->plot_width, LANE_HEIGHT - 2, MARGIN_LEFT - 8,
                    y + LANE_HEIGHT * 0.66, names[r]);
        }
    }
}

static void print_axis(const struct canvas *c, const struct panel *p)
{
    double bottom = rows_bottom(c, p), step = vf_svg_tick_step(TICK_PX * c->bytes_per_px / MIB);
    fprintf(c->out, "<path class=\"axis\" d=\"M%.1f %.1fh%.1f\"/>\n", MARGIN_LEFT, bottom + 4,
            c->plot_width);
    for (double mb = 0; mb * MIB <= c->bytes_per_px * c->plot_width; mb += step)
        fprintf(c->out,
                "<path class=\"axis\" d=\"M%.1f %.1fv5\"/><text class=\"small\" x=\"%.1f\" "
                "y=\"%.1f\" text-anchor=\"middle\">%.6g MB</text><text class=\"small\" x=\"%.1f\" "
                "y=\"%.1f\" text-anchor=\"middle\">%.3g ms</text>\n",
                x_of(c, mb * MIB), bottom + 4, x_of(c, mb * MIB), bottom + 20, mb,
                x_of(c, mb * MIB), bottom + 34, vf_plan_token_ms(c->plan, mb * MIB));
}

/* The label that fits: "attention 3", "3" or nothing. */
static void print_box_label(const struct canvas *c, const struct vf_op *op, double x, double y,
                            double width)
{
    char label[32];
    if (op->layer == VF_LAYER_NONE)
        snprintf(label, sizeof label, "%s", vf_op_kind_name(op->kind));
    else
        snprintf(label, sizeof label, "%s %u", vf_op_kind_name(op->kind), op->step_layer);
    if (width < LABEL_WIDTH * (double)strlen(label) && op->layer != VF_LAYER_NONE)
        snprintf(label, sizeof label, "%u", op->step_layer);
    if (width >= LABEL_WIDTH * (double)strlen(label) + 2)
        fprintf(c->out, "<text class=\"in\" x=\"%.2f\" y=\"%.2f\">%s</text>\n", x + width / 2,
                y + 4, label);
}

static void print_boxes(const struct canvas *c, const struct panel *p)
{
    const struct vf_program *g = &c->plan->program;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct vf_op *op = &g->ops[i];
        if (!c->plan->op_bytes[i])
            continue;
        double x = x_of(c, p->time->start[i]), y = y_of(c, p, i);
        double width = fmax((double)c->plan->op_bytes[i] / c->bytes_per_px, 0.6);
        fprintf(c->out,
                "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.1f\" "
                "stroke=\"#fff\" stroke-width=\"%.1f\">"
                "<title>op %u: %s",
                op_class(op->kind), x, y - BOX_HEIGHT / 2, width, BOX_HEIGHT, width > 4 ? 0.6 : 0.0,
                i, vf_op_kind_name(op->kind));
        if (op->layer != VF_LAYER_NONE)
            fprintf(c->out, ", layer %u", op->step_layer);
        fprintf(c->out, ", %.3f MB</title></rect>\n", (double)c->plan->op_bytes[i] / MIB);
        print_box_label(c, op, x, y, width);
    }
}

/* From (bytes, y) to (bytes, y), nearly level at both ends. */
static void print_link(const struct canvas *c, const char *kind, double from, double y0, double to,
                       double y1)
{
    double x0 = x_of(c, from), x1 = x_of(c, to), bend = fmin(fmax((x1 - x0) / 2, 3.0), 40.0);
    fprintf(c->out,
            "<path class=\"link %s\" d=\"M%.2f %.2fC%.2f %.2f %.2f %.2f %.2f %.2f\" "
            "marker-end=\"url(#tip)\"/>\n",
            kind, x0, y0, x0 + bend, y0, x1 - bend, y1, x1, y1);
}

static uint32_t producer_of(const struct vf_program *g, uint32_t op, uint32_t input)
{
    return g->values[vf_op_inputs(g, &g->ops[op])[input]].producer;
}

/* Older residual -> the dense FFN that reads it (through its norm). */
static void link_dense(const struct canvas *c, const struct panel *p, uint32_t i)
{
    const struct vf_program *g = &c->plan->program;
    uint32_t source = producer_of(g, producer_of(g, i, 0), 0);
    print_link(c, "dd", p->time->finish[source], y_of(c, p, source), p->time->start[i],
               y_of(c, p, i));
}

/* Route -> experts (the read), experts -> their consumer (the wait). */
static void link_experts(const struct canvas *c, const struct panel *p, uint32_t i)
{
    const struct vf_program *g = &c->plan->program;
    uint32_t route = producer_of(g, i, 1), reader = g->values[g->ops[i].out].last_use;
    print_link(c, "read", p->time->finish[route], y_of(c, p, route), p->time->start[i],
               y_of(c, p, i));
    print_link(c, "due", p->time->finish[i], y_of(c, p, i), p->time->start[reader],
               y_of(c, p, reader));
}

static void print_links(const struct canvas *c, const struct panel *p)
{
    const struct vf_program *g = &c->plan->program;
    const struct vf_placement *pl = &c->plan->placement;
    for (uint32_t i = 0; i < g->op_count; i++) {
        if (g->ops[i].kind == VF_OP_DENSE && c->plan->config->dense_delay)
            link_dense(c, p, i);
        if (g->ops[i].kind == VF_OP_EXPERTS && c->plan->config->expert_delay)
            link_experts(c, p, i);
    }
    for (uint32_t i = 0; p->by_worker && i < pl->edge_count; i++) {
        const struct vf_edge *e = &pl->edges[i];
        print_link(c, "message", p->time->finish[e->send_after], y_of(c, p, e->send_after),
                   p->time->start[e->recv_before], y_of(c, p, e->recv_before));
    }
}

static void print_panel(const struct canvas *c, const struct panel *p)
{
    print_rows(c, p);
    print_axis(c, p);
    print_links(c, p);
    print_boxes(c, p);
}

void vf_plan_draw_svg(const struct vf_plan *plan, FILE *out)
{
    struct canvas c;
    init_canvas(&c, plan, out);
    struct panel placed = {.title = "As placed: a worker reads its operations one after another",
                           .time = &plan->placed,
                           .by_worker = true,
                           .top = HEAD_HEIGHT + PANEL_TITLE};
    struct panel lanes = {.title = "The same program with attention, dense FFN and experts read "
                                   "side by side, each at the full bandwidth",
                          .time = &plan->lanes,
                          .by_worker = false};
    lanes.top = rows_bottom(&c, &placed) + AXIS_HEIGHT + PANEL_GAP + PANEL_TITLE;
    double height = rows_bottom(&c, &lanes) + AXIS_HEIGHT + 16;
    double width = MARGIN_LEFT + c.plot_width + MARGIN_RIGHT;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\">\n",
            width, height, width, height);
    print_style(out);
    fprintf(out, "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    print_head(&c);
    print_panel(&c, &placed);
    print_panel(&c, &lanes);
    fprintf(out, "</svg>\n");
}
