/* Draws the timeline of one token: time runs to the right in bytes read, an operation is a box as
 * wide as its bytes.
 *
 * Up to two timelines share the scale: the placement as it runs and, where it differs, the same
 * program with attention, dense and experts read side by side, which is where a delay shows. A
 * timeline whose layers are too narrow for their names is drawn twice: whole, a row for each
 * worker, and some layers of it enlarged, with what passes between their operations.
 */
#include "coordinator/plan/plan_model.h"

#include "common/draw/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0

/* Pixels. */
#define PLOT_LEFT       150.0
#define PLOT_RIGHT      (VF_DRAW_WIDTH - 24.0)
#define ROW_HEIGHT      24.0
#define BOX_HEIGHT      18.0
#define WORKER_GAP      8.0
#define VIEW_TITLE      42.0 /* above the rows */
#define NUMBERS_MB      15.0 /* below the rows */
#define NUMBERS_MS      31.0
#define AXES_HEIGHT     36.0
#define VIEW_GAP        14.0
#define LAYER_WIDTH_MIN 110.0 /* of a layer whose operations have room for their names */
#define LETTER_WIDTH    6.8   /* in a box, roughly */

#define LAYERS_ENLARGED  4u
#define ENLARGED_MIN     2.0  /* times; less isn't worth a second view */
#define WORKERS_IN_FULL  2u   /* in a whole timeline with a row for each kind of operation */
#define WORKER_SHARE_MIN 5e-3 /* of a view: a worker that reads less in it isn't shown */
#define SAME_SHARE       1e-3 /* of the total: timelines that differ by less are the same */

enum row { ROW_OTHER, ROW_ATTENTION, ROW_DENSE, ROW_EXPERTS, ROW_COUNT };

enum link_kind { LINK_ATTENTION, LINK_DENSE, LINK_READ, LINK_DUE, LINK_MESSAGE, LINK_KINDS };
static const struct {
    const char *class, *legend;
} link_looks[LINK_KINDS] = {
    [LINK_ATTENTION] = {"s0 dashed", "attention delay: older residual to attention"},
    [LINK_DENSE] = {"s1 dashed", "dense delay: older residual to FFN"},
    [LINK_READ] = {"s2 dashed", "expert delay: routed, being read"},
    [LINK_DUE] = {"s2", "expert delay: computed, not yet due"},
    [LINK_MESSAGE] = {"s4 dotted thick", "value sent to another worker"},
};
struct link {
    enum link_kind kind;
    uint32_t from, to; /* ops */
};

/* A timeline, or a part of it. */
struct view {
    char title[128];
    const struct vf_plan_timeline *time;
    double low, high;        /* bytes */
    bool by_worker, by_kind; /* what has a row of its own */
    bool detail;             /* names in boxes, links between them */
    const struct view *zoom; /* the view that enlarges a part of this one, or NULL */
    double top;              /* of the first row */
};

#define VIEWS_MAX 4
struct canvas {
    const struct vf_plan *plan;
    FILE *out;
    int row_index[ROW_COUNT]; /* -1: this model has no such row */
    int rows;
    uint32_t first_layer, layer_count; /* enlarged */
    struct link *links;
    size_t link_count;
    struct view views[VIEWS_MAX];
    int view_count;
    int block[VF_STAGE_WORKERS_MAX]; /* of the view being drawn, by worker; -1: not in it */
};

/* ---- rows ----------------------------------------------------------------------------------- */

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
    static const char *const classes[ROW_COUNT] = {"f5", "f0", "f1", "f2"};
    return kind == VF_OP_ROUTE ? "f3" : classes[op_row(kind)];
}

/* Bytes of an op that lie in a view. */
static double bytes_in(const struct canvas *c, const struct view *v, uint32_t op)
{
    double end = fmin(v->time->start[op] + (double)c->plan->op_bytes[op], v->high);
    return fmax(end - fmax(v->time->start[op], v->low), 0);
}

static bool is_drawn(const struct canvas *c, const struct view *v, uint32_t op)
{
    return bytes_in(c, v, op) > 0 &&
           (!v->by_worker || c->block[c->plan->shape.placement.op_worker[op]] >= 0);
}

/* Numbers the workers that have a part in a view; returns how many. */
static int find_blocks(struct canvas *c, const struct view *v)
{
    uint32_t workers = c->plan->shape.placement.worker_count;
    int blocks = 0;
    if (!v->by_worker)
        return 1;
    for (uint32_t w = 0; w < workers; w++)
        c->block[w] = -1;
    for (uint32_t i = 0; i < c->plan->program.op_count; i++)
        if (bytes_in(c, v, i) > WORKER_SHARE_MIN * (v->high - v->low))
            c->block[c->plan->shape.placement.op_worker[i]] = 0;
    for (uint32_t w = 0; w < workers; w++)
        if (c->block[w] == 0)
            c->block[w] = blocks++;
    return blocks;
}

static double block_height(const struct canvas *c, const struct view *v)
{
    return v->by_kind ? c->rows * ROW_HEIGHT + WORKER_GAP : ROW_HEIGHT;
}

static double rows_height(struct canvas *c, const struct view *v)
{
    return find_blocks(c, v) * block_height(c, v) - (v->by_kind ? WORKER_GAP : 0);
}

static double x_of(const struct view *v, double bytes)
{
    return PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * (bytes - v->low) / (v->high - v->low);
}

/* Middle of the row that an op is drawn in. */
static double y_of(const struct canvas *c, const struct view *v, uint32_t op)
{
    int block = v->by_worker ? c->block[c->plan->shape.placement.op_worker[op]] : 0;
    int row = v->by_kind ? c->row_index[op_row(c->plan->program.ops[op].kind)] : 0;
    return v->top + block * block_height(c, v) + (row + 0.5) * ROW_HEIGHT;
}

/* ---- links ---------------------------------------------------------------------------------- */

static void add_link(struct canvas *c, enum link_kind kind, uint32_t from, uint32_t to)
{
    c->links[c->link_count++] = (struct link){kind, from, to};
}

static uint32_t producer_of(const struct vf_program *g, uint32_t op, uint32_t input)
{
    return g->values[vf_op_inputs(g, &g->ops[op])[input]].producer;
}

static void find_links(struct canvas *c)
{
    const struct vf_program *g = &c->plan->program;
    const struct vf_config *config = c->plan->config;
    const struct vf_placement *pl = &c->plan->shape.placement;
    for (uint32_t i = 0; i < g->op_count; i++) {
        enum vf_op_kind kind = g->ops[i].kind;
        if (kind == VF_OP_ATTENTION && config->attention_delay) /* through its norm */
            add_link(c, LINK_ATTENTION, producer_of(g, producer_of(g, i, 0), 0), i);
        if (kind == VF_OP_DENSE && config->dense_delay)
            add_link(c, LINK_DENSE, producer_of(g, producer_of(g, i, 0), 0), i);
        if (kind == VF_OP_EXPERTS && config->expert_delay) {
            add_link(c, LINK_READ, producer_of(g, i, 1), i);
            add_link(c, LINK_DUE, i, g->values[g->ops[i].out].last_use);
        }
    }
    for (uint32_t i = 0; i < pl->edge_count; i++)
        add_link(c, LINK_MESSAGE, pl->edges[i].send_after, pl->edges[i].recv_before);
}

static bool link_is_drawn(const struct canvas *c, const struct view *v, const struct link *l)
{
    const struct vf_placement *pl = &c->plan->shape.placement;
    bool message = l->kind == LINK_MESSAGE;
    if ((message ? !v->by_worker : !v->detail) || v->time->start[l->to] < v->low ||
        v->time->finish[l->from] > v->high)
        return false;
    return !v->by_worker ||
           (c->block[pl->op_worker[l->from]] >= 0 && c->block[pl->op_worker[l->to]] >= 0);
}

/* From the end of one op to the start of another, nearly level at both. */
static void draw_link(const struct canvas *c, const struct view *v, const struct link *l)
{
    double x0 = x_of(v, v->time->finish[l->from]), x1 = x_of(v, v->time->start[l->to]);
    double y0 = y_of(c, v, l->from), y1 = y_of(c, v, l->to);
    double bend = fmin(fmax((x1 - x0) / 2, 3.0), 40.0);
    fprintf(c->out,
            "<path class=\"%s\" d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f\" "
            "marker-end=\"url(#tip)\"/>\n",
            link_looks[l->kind].class, x0, y0, x0 + bend, y0, x1 - bend, y1, x1, y1);
}

static void draw_links(const struct canvas *c, const struct view *v, double height)
{
    int number = (int)(v - c->views);
    fprintf(c->out,
            "<clipPath id=\"view%d\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>"
            "</clipPath>\n<g clip-path=\"url(#view%d)\">\n",
            number, PLOT_LEFT, v->top, PLOT_RIGHT - PLOT_LEFT, height, number);
    for (size_t i = 0; i < c->link_count; i++)
        if (link_is_drawn(c, v, &c->links[i]))
            draw_link(c, v, &c->links[i]);
    fputs("</g>\n", c->out);
}

/* ---- a view --------------------------------------------------------------------------------- */

static void draw_block(const struct canvas *c, const struct view *v, uint32_t worker, double top)
{
    static const char *const names[ROW_COUNT] = {"rest", "attention", "dense FFN", "experts"};
    char name[32];
    snprintf(name, sizeof name, "worker %u", worker);
    if (v->by_worker)
        vf_draw_text(c->out, "label", "start", VF_DRAW_MARGIN, top + ROW_HEIGHT * 0.68, name);
    for (int r = 0; r < (v->by_kind ? ROW_COUNT : 1); r++) {
        if (v->by_kind && c->row_index[r] < 0)
            continue;
        double y = top + (v->by_kind ? c->row_index[r] * ROW_HEIGHT : 0);
        fprintf(c->out,
                "<rect class=\"band\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
                PLOT_LEFT, y + 1, PLOT_RIGHT - PLOT_LEFT, ROW_HEIGHT - 2);
        if (v->by_kind)
            vf_draw_text(c->out, "small", "end", PLOT_LEFT - 8, y + ROW_HEIGHT * 0.66, names[r]);
    }
}

static void draw_rows(const struct canvas *c, const struct view *v)
{
    if (!v->by_worker) {
        draw_block(c, v, 0, v->top);
        return;
    }
    for (uint32_t w = 0; w < c->plan->shape.placement.worker_count; w++)
        if (c->block[w] >= 0)
            draw_block(c, v, w, v->top + c->block[w] * block_height(c, v));
}

static void draw_axes(const struct canvas *c, const struct view *v, double bottom)
{
    char title[32];
    struct vf_axis mb = {v->low / MIB, v->high / MIB, PLOT_LEFT, PLOT_RIGHT, false};
    struct vf_axis ms = {vf_plan_token_ms(c->plan, v->low), vf_plan_token_ms(c->plan, v->high),
                         PLOT_LEFT, PLOT_RIGHT, false};
    snprintf(title, sizeof title, "ms at %.3g GB/s", c->plan->bandwidth_gb_s);
    vf_axis_draw_level(c->out, &mb, v->top, bottom, bottom + NUMBERS_MB);
    vf_draw_text(c->out, "axis-title", "end", PLOT_LEFT - 22, bottom + NUMBERS_MB, "MB read");
    vf_axis_draw_level(c->out, &ms, bottom, bottom, bottom + NUMBERS_MS);
    vf_draw_text(c->out, "axis-title", "end", PLOT_LEFT - 22, bottom + NUMBERS_MS, title);
}

/* The name that fits: "attention 3", "3" or nothing. */
static void draw_name(const struct canvas *c, const struct vf_op *op, double x, double y,
                      double width)
{
    char name[32], number[16];
    bool in_layer = op->layer != VF_LAYER_NONE;
    snprintf(number, sizeof number, " %u", op->step_layer);
    snprintf(name, sizeof name, "%s%s", vf_op_kind_name(op->kind), in_layer ? number : "");
    if (width < LETTER_WIDTH * (double)strlen(name) && in_layer)
        memmove(name, number + 1, strlen(number));
    if (width >= LETTER_WIDTH * (double)strlen(name) + 2)
        vf_draw_text(c->out, "in", "middle", x + width / 2, y + 4, name);
}

static void draw_box(const struct canvas *c, const struct view *v, uint32_t i)
{
    const struct vf_op *op = &c->plan->program.ops[i];
    double x = x_of(v, fmax(v->time->start[i], v->low)), y = y_of(c, v, i);
    double end = x_of(v, fmin(v->time->start[i] + (double)c->plan->op_bytes[i], v->high));
    double width = fmax(end - x, 0.6);
    fprintf(c->out,
            "<rect class=\"%s%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.1f\">"
            "<title>op %u: %s",
            op_class(op->kind), width > 4 ? " edge" : "", fmin(x, PLOT_RIGHT - width),
            y - BOX_HEIGHT / 2, width, BOX_HEIGHT, i, vf_op_kind_name(op->kind));
    if (op->layer != VF_LAYER_NONE)
        fprintf(c->out, ", layer %u", op->step_layer);
    fprintf(c->out, ", %.3f MB</title></rect>\n", (double)c->plan->op_bytes[i] / MIB);
    if (v->detail || op->layer == VF_LAYER_NONE)
        draw_name(c, op, x, y, width);
}

/* Around the part that another view enlarges. */
static void draw_zoom(const struct canvas *c, const struct view *v, double height)
{
    char name[64];
    double from = x_of(v, v->zoom->low), to = x_of(v, v->zoom->high);
    snprintf(name, sizeof name, "layers %u to %u, enlarged below", c->first_layer,
             c->first_layer + c->layer_count - 1);
    double half = vf_draw_text_width(name) / 2;
    double x = fmin(fmax((from + to) / 2, PLOT_LEFT + half), PLOT_RIGHT - half);
    fprintf(c->out, "<rect class=\"ink\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
            from, v->top - 2, to - from, height + 4);
    vf_draw_text(c->out, "small", "middle", x, v->top - 7, name);
}

static void draw_view(struct canvas *c, const struct view *v)
{
    double height = rows_height(c, v);
    vf_draw_text(c->out, "panel", "start", VF_DRAW_MARGIN, v->top - 24, v->title);
    draw_rows(c, v);
    draw_axes(c, v, v->top + height);
    draw_links(c, v, height);
    for (uint32_t i = 0; i < c->plan->program.op_count; i++)
        if (is_drawn(c, v, i))
            draw_box(c, v, i);
    if (v->zoom)
        draw_zoom(c, v, height);
}

/* ---- which views ---------------------------------------------------------------------------- */

static bool timelines_differ(const struct vf_plan *p)
{
    double most = 0;
    for (uint32_t i = 0; i < p->program.op_count; i++)
        if (p->op_bytes[i])
            most = fmax(most, fabs(p->placed.start[i] - p->lanes.start[i]));
    return most > SAME_SHARE * p->placed.total;
}

/* When the last layer is through. */
static double layers_end(const struct vf_plan *p, const struct vf_plan_timeline *t)
{
    for (uint32_t i = 0; i < p->program.op_count; i++)
        if (p->program.ops[i].kind == VF_OP_HEAD)
            return t->start[i];
    return t->total;
}

/* When attention of a layer starts; behind the last one, when that is through. */
static double layer_start(const struct vf_plan *p, const struct vf_plan_timeline *t, uint32_t layer)
{
    for (uint32_t i = 0; i < p->program.op_count; i++)
        if (p->program.ops[i].kind == VF_OP_ATTENTION && p->program.ops[i].step_layer == layer)
            return t->start[i];
    return layers_end(p, t);
}

/* Layers to enlarge: around the first step from one worker to the next, else in the middle. */
static void choose_layers(struct canvas *c)
{
    const struct vf_plan *p = c->plan;
    uint32_t layers = p->program.effective_layers, middle = layers / 2;
    for (uint32_t i = p->program.op_count; i-- > 0 && p->shape.placement.worker_count > 1;)
        if (p->program.ops[i].kind == VF_OP_ATTENTION && p->shape.placement.op_worker[i] == 1)
            middle = p->program.ops[i].step_layer;
    c->layer_count = layers < LAYERS_ENLARGED ? layers : LAYERS_ENLARGED;
    uint32_t before = middle < c->layer_count / 2 ? middle : c->layer_count / 2;
    uint32_t last = layers - c->layer_count;
    c->first_layer = middle - before < last ? middle - before : last;
}

/* Whether a whole timeline of so many bytes has room for the names of its operations; low and high:
 * what would be enlarged. */
static bool fits_whole(const struct canvas *c, const struct vf_plan_timeline *time, bool by_worker,
                       double bytes, double low, double high)
{
    const struct vf_plan *p = c->plan;
    double span = layers_end(p, time) - layer_start(p, time, 0);
    double layer_px = (PLOT_RIGHT - PLOT_LEFT) * span / bytes / p->program.effective_layers;
    return (layer_px >= LAYER_WIDTH_MIN || bytes < ENLARGED_MIN * (high - low)) &&
           (!by_worker || p->shape.placement.worker_count <= WORKERS_IN_FULL);
}

/* One view of a timeline, or the whole of it and a part. */
static void add_timeline(struct canvas *c, const struct vf_plan_timeline *time, bool by_worker,
                         const char *title)
{
    const struct vf_plan *p = c->plan;
    double longest = fmax(p->placed.total, timelines_differ(p) ? p->lanes.total : 0);
    double low = layer_start(p, time, c->first_layer);
    double high = layer_start(p, time, c->first_layer + c->layer_count);
    bool whole = fits_whole(c, time, by_worker, longest, low, high);
    struct view *v = &c->views[c->view_count++], *part = v + 1;
    *v = (struct view){.time = time,
                       .high = longest,
                       .by_worker = by_worker,
                       .by_kind = whole || !by_worker,
                       .detail = whole,
                       .zoom = whole ? NULL : part};
    snprintf(v->title, sizeof v->title, "%s", title);
    if (whole)
        return;
    c->view_count++;
    *part = (struct view){.time = time,
                          .low = low,
                          .high = high,
                          .by_worker = by_worker,
                          .by_kind = true,
                          .detail = true};
    snprintf(part->title, sizeof part->title, "Layers %u to %u of it, enlarged", c->first_layer,
             c->first_layer + c->layer_count - 1);
}

static void init_canvas(struct canvas *c)
{
    const struct vf_plan *p = c->plan;
    bool present[ROW_COUNT] = {[ROW_OTHER] = true, [ROW_ATTENTION] = true};
    for (uint32_t i = 0; i < p->program.op_count; i++)
        present[op_row(p->program.ops[i].kind)] = true;
    for (int r = 0; r < ROW_COUNT; r++)
        c->row_index[r] = present[r] ? c->rows++ : -1;
    find_links(c);
    choose_layers(c);
    add_timeline(c, &p->placed, true, "As placed: a worker reads its operations one after another");
    if (timelines_differ(p))
        add_timeline(c, &p->lanes, false,
                     "The same program with attention, dense FFN and experts read side by side, "
                     "each at the full bandwidth");
}

/* ---- the head ------------------------------------------------------------------------------- */

static bool reads_weights(const struct vf_plan *p, const char *class)
{
    for (uint32_t i = 0; i < p->program.op_count; i++)
        if (p->op_bytes[i] && strcmp(op_class(p->program.ops[i].kind), class) == 0)
            return true;
    return false;
}

static bool draws_link(struct canvas *c, enum link_kind kind)
{
    for (int v = 0; v < c->view_count; v++) {
        find_blocks(c, &c->views[v]);
        for (size_t i = 0; i < c->link_count; i++)
            if (c->links[i].kind == kind && link_is_drawn(c, &c->views[v], &c->links[i]))
                return true;
    }
    return false;
}

/* What occurs in the drawing. Returns the last line's baseline; out NULL: nothing is drawn. */
static double draw_legend(struct canvas *c, double y, FILE *out)
{
    static const struct {
        const char *class, *text;
    } kinds[] = {{"f0", "attention"},
                 {"f1", "dense FFN"},
                 {"f2", "experts"},
                 {"f3", "router"},
                 {"f5", "embedding, norms, head"}};
    struct vf_legend legend = {out, VF_DRAW_MARGIN, y};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (reads_weights(c->plan, kinds[i].class))
            vf_legend_add(&legend, VF_MARK_BOX, kinds[i].class, kinds[i].text);
    for (int k = 0; k < LINK_KINDS; k++)
        if (draws_link(c, (enum link_kind)k))
            vf_legend_add(&legend, VF_MARK_ARROW, link_looks[k].class, link_looks[k].legend);
    return legend.y;
}

static void describe(const struct vf_plan *p, char *out, size_t n)
{
    int used = snprintf(
        out, n,
        "%s, delays: attention %u, dense %u, experts %u; %u layers, %s weights, "
        "%.2f MB read for a token. Closed form at 0.5 bytes a weight: naive %.2f, "
        "critical %.2f MB/token. MB are 2^20 bytes.",
        vf_style_name(p->config->style), p->config->attention_delay, p->config->dense_delay,
        p->config->expert_delay, p->program.effective_layers, p->quant_name,
        (double)vf_plan_sum(p->token_bytes) / MIB, p->closed.naive / MIB, p->closed.critical / MIB);
    if (!timelines_differ(p))
        snprintf(out + used, n - (size_t)used,
                 " Attention, dense FFN and experts side by side would take as long: each waits "
                 "for the one before.");
}

enum vf_code vf_plan_draw_svg(const struct vf_plan *plan, FILE *out, struct vf_err *err)
{
    struct canvas c = {.plan = plan, .out = out};
    char subtitle[640];
    /* at most two of an operation */
    size_t most = 2 * (size_t)plan->program.op_count + plan->shape.placement.edge_count;
    c.links = malloc(most * sizeof *c.links);
    if (!c.links)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for a drawing of %zu links", most);
    init_canvas(&c);
    describe(plan, subtitle, sizeof subtitle);
    double legend = vf_draw_head_height(subtitle) + 4;
    double y = draw_legend(&c, legend, NULL) + VIEW_GAP;
    for (int i = 0; i < c.view_count; i++) {
        c.views[i].top = y + VIEW_TITLE;
        y = c.views[i].top + rows_height(&c, &c.views[i]) + AXES_HEIGHT + VIEW_GAP;
    }
    vf_draw_begin(out, y, plan->source, subtitle);
    draw_legend(&c, legend, out);
    for (int i = 0; i < c.view_count; i++)
        draw_view(&c, &c.views[i]);
    vf_draw_end(out);
    free(c.links);
    return VF_OK;
}
