/* Draws the panels of a chart one below the other. A median's number stands at its mark; a spread
 * is a whisker beside it, never across it.
 */
#include "bench/bench.h"
#include "bench/report/chart_internal.h"

#include "common/draw/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Pixels. */
#define RIGHT          (VF_DRAW_WIDTH - 56.0) /* room for a number beside the longest bar */
#define TITLE_HEIGHT   24.0
#define NAMES_HEIGHT   18.0  /* the names' own axis title, above bars */
#define PLOT_HEIGHT    260.0 /* of lines and dots */
#define AXIS_HEIGHT    36.0  /* numbers or names, and the title under them */
#define PANEL_GAP      26.0
#define SLOT_HEIGHT    19.0 /* of a bar */
#define BAR_HEIGHT     17.0
#define WHISKER_UP     3.5 /* above a bar's lower edge */
#define CATEGORY_GAP   9.0
#define NAME_WIDTH_MAX 300.0
#define SERIES_SHIFT   5.0 /* between the marks of two series at one category */
#define NUMBER_GAP     5.0
#define NUMBERED_MAX   24   /* medians of dots that are numbered; more would overlap */
#define SPACE_ABOVE    0.06 /* of the range of values */

struct plot {
    const struct bench_panel *p;
    FILE *out;
    double left, top, height;
    struct vf_axis values;
};

static const char *value_text(const struct bench_panel *p, double v, char *buf, size_t n)
{
    double shown = p->look.percent ? 100.0 * v : v;
    int digits = fabs(shown) >= 100 ? 0 : fabs(shown) >= 10 ? 1 : fabs(shown) >= 1 ? 2 : 3;
    snprintf(buf, n, "%.*f%s", digits, shown, p->look.percent ? "%" : "");
    return buf;
}

static bool has_spread(const struct bench_panel *p)
{
    for (size_t i = 0; i < p->point_count; i++)
        if (p->points[i].high > p->points[i].low)
            return true;
    return false;
}

static void colour(char *out, size_t n, char kind, int series)
{
    snprintf(out, n, "%c%d", kind, series % VF_DRAW_COLOURS);
}

/* ---- bars ----------------------------------------------------------------------------------- */

static double category_height(const struct bench_panel *p)
{
    return p->series.count * SLOT_HEIGHT + CATEGORY_GAP;
}

/* Inside the bar's end, or behind a bar too short for it. */
static void draw_number(const struct plot *plot, double from, double to, double y, double value)
{
    char text[48];
    value_text(plot->p, value, text, sizeof text);
    if (to - from > vf_draw_text_width(text) + 2 * NUMBER_GAP)
        vf_draw_text(plot->out, "in median", "end", to - NUMBER_GAP, y, text);
    else
        vf_draw_text(plot->out, "small median", "start", to + NUMBER_GAP, y, text);
}

static void draw_bar(const struct plot *plot, const struct bench_point *pt)
{
    double y = plot->top + pt->category * category_height(plot->p) + CATEGORY_GAP / 2 +
               pt->series * SLOT_HEIGHT;
    double from = vf_axis_at(&plot->values, fmin(pt->y, 0));
    double to = vf_axis_at(&plot->values, fmax(pt->y, 0));
    char class[16];
    colour(class, sizeof class, 'f', pt->series);
    fprintf(plot->out,
            "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", class,
            from, y, fmax(to - from, 0.5), BAR_HEIGHT);
    draw_number(plot, from, to, y + 11, pt->y);
    if (pt->high > pt->low)
        fprintf(plot->out, "<path class=\"ink\" d=\"M%.1f %.1fv4m0 -2H%.1fm0 -2v4\"/>\n",
                vf_axis_at(&plot->values, pt->low), y + BAR_HEIGHT - WHISKER_UP - 2,
                vf_axis_at(&plot->values, pt->high));
}

static void draw_bars(const struct plot *plot)
{
    const struct bench_panel *p = plot->p;
    double bottom = plot->top + plot->height, zero = vf_axis_at(&plot->values, 0);
    vf_draw_text(plot->out, "axis-title", "end", plot->left - 8, plot->top - 4, p->look.categories);
    vf_axis_draw_level(plot->out, &plot->values, plot->top, bottom, bottom + 15);
    vf_draw_text(plot->out, "axis-title", "middle", (plot->left + RIGHT) / 2, bottom + 32,
                 p->look.values);
    if (p->look.rule_label)
        fprintf(plot->out, "<path class=\"ink dashed\" d=\"M%.1f %.1fV%.1f\"/>\n",
                vf_axis_at(&plot->values, p->look.rule), plot->top, bottom);
    for (int c = 0; c < p->categories.count; c++)
        vf_draw_text(plot->out, "label", "end", plot->left - 8,
                     plot->top + (c + 0.5) * category_height(p) + 4, p->categories.items[c]);
    for (size_t i = 0; i < p->point_count; i++)
        draw_bar(plot, &p->points[i]);
    fprintf(plot->out, "<path class=\"axis\" d=\"M%.1f %.1fV%.1f\"/>\n", zero, plot->top, bottom);
}

/* ---- lines and dots ------------------------------------------------------------------------- */

static double category_width(const struct plot *plot)
{
    return (RIGHT - plot->left) / plot->p->categories.count;
}

static double category_x(const struct plot *plot, int category)
{
    return plot->left + category_width(plot) * (category + 0.5);
}

/* Series with a spread stand beside each other, so that their whiskers do. */
static double point_x(const struct plot *plot, const struct bench_point *pt, bool spread)
{
    double middle = (plot->p->series.count - 1) / 2.0;
    return category_x(plot, pt->category) + (spread ? SERIES_SHIFT * (pt->series - middle) : 0);
}

static void draw_axes(const struct plot *plot)
{
    const struct bench_panel *p = plot->p;
    double bottom = plot->top + plot->height, widest = 0;
    vf_axis_draw_upright(plot->out, &plot->values, plot->left, RIGHT, p->look.values);
    fprintf(plot->out, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>\n", plot->left, bottom, RIGHT);
    for (int c = 0; c < p->categories.count; c++)
        widest = fmax(widest, vf_draw_text_width(p->categories.items[c]) + 8);
    int every = (int)ceil(widest / category_width(plot)); /* so many names fit */
    for (int c = 0; c < p->categories.count; c += every)
        vf_draw_text(plot->out, "label", "middle", category_x(plot, c), bottom + 16,
                     p->categories.items[c]);
    vf_draw_text(plot->out, "axis-title", "middle", (plot->left + RIGHT) / 2, bottom + 32,
                 p->look.categories);
    if (p->look.rule_label)
        fprintf(plot->out, "<path class=\"ink dashed\" d=\"M%.1f %.1fH%.1f\"/>\n", plot->left,
                vf_axis_at(&plot->values, p->look.rule), RIGHT);
}

static void draw_line(const struct plot *plot, int series, bool spread)
{
    const struct bench_panel *p = plot->p;
    char class[16];
    int drawn = 0;
    colour(class, sizeof class, 's', series);
    fprintf(plot->out, "<path class=\"%s thick\" d=\"", class);
    for (size_t i = 0; i < p->point_count; i++)
        if (p->points[i].series == series)
            fprintf(plot->out, "%c%.1f %.1f", drawn++ ? 'L' : 'M',
                    point_x(plot, &p->points[i], spread),
                    vf_axis_at(&plot->values, p->points[i].y));
    fputs("\"/>\n", plot->out);
}

static void draw_lines(const struct plot *plot)
{
    const struct bench_panel *p = plot->p;
    bool spread = has_spread(p);
    for (int s = 0; s < p->series.count; s++)
        draw_line(plot, s, spread);
    for (size_t i = 0; i < p->point_count; i++) {
        const struct bench_point *pt = &p->points[i];
        double x = point_x(plot, pt, spread);
        char class[16];
        if (pt->high > pt->low)
            fprintf(plot->out, "<path class=\"ink\" d=\"M%.1f %.1fh4m-2 0V%.1fm-2 0h4\"/>\n", x - 2,
                    vf_axis_at(&plot->values, pt->low), vf_axis_at(&plot->values, pt->high));
        colour(class, sizeof class, 'f', pt->series);
        fprintf(plot->out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", class, x,
                vf_axis_at(&plot->values, pt->y));
    }
}

static void draw_median(const struct plot *plot, int category, double *scratch)
{
    const struct bench_panel *p = plot->p;
    size_t n = 0;
    char text[48];
    for (size_t i = 0; i < p->point_count; i++)
        if (p->points[i].category == category)
            scratch[n++] = p->points[i].y;
    double median = bench_median(scratch, n), half = 0.36 * category_width(plot);
    double x = category_x(plot, category) + half, y = vf_axis_at(&plot->values, median);
    fprintf(plot->out, "<path class=\"ink thick\" d=\"M%.1f %.1fH%.1f\"/>\n", x - 2 * half, y, x);
    if (p->categories.count <= NUMBERED_MAX)
        vf_draw_text(plot->out, "small median", "start", x + 3, y + 4,
                     value_text(p, median, text, sizeof text));
}

/* Spread out evenly, so that clusters show. */
static void draw_dots(const struct plot *plot)
{
    const struct bench_panel *p = plot->p;
    double *scratch = calloc(p->point_count, sizeof *scratch);
    char class[16];
    for (size_t i = 0; i < p->point_count; i++) {
        const struct bench_point *pt = &p->points[i];
        double aside = 0.6 * category_width(plot) * (fmod((double)i * 0.618034, 1.0) - 0.5);
        colour(class, sizeof class, 'f', pt->series);
        fprintf(plot->out,
                "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill-opacity=\".6\"/>\n",
                class, category_x(plot, pt->category) + aside, vf_axis_at(&plot->values, pt->y));
    }
    for (int c = 0; c < p->categories.count && scratch; c++)
        draw_median(plot, c, scratch);
    if (!scratch)
        p->chart->failed = true;
    free(scratch);
}

/* ---- panels --------------------------------------------------------------------------------- */

/* What occurs in the panel. Returns the last line's baseline; out NULL: nothing is drawn. */
static double draw_legend(const struct bench_panel *p, double y, FILE *out)
{
    static const enum vf_mark marks[] = {
        [BENCH_BARS] = VF_MARK_BOX, [BENCH_LINES] = VF_MARK_LINE, [BENCH_DOTS] = VF_MARK_DOT};
    struct vf_legend legend = {out, VF_DRAW_MARGIN, y};
    char class[32];
    for (int s = 0; s < p->series.count; s++) {
        colour(class, sizeof class, p->look.kind == BENCH_LINES ? 's' : 'f', s);
        strcat(class, p->look.kind == BENCH_LINES ? " thick" : "");
        vf_legend_add(&legend, marks[p->look.kind], class, p->series.items[s]);
    }
    if (p->look.kind == BENCH_DOTS)
        vf_legend_add(&legend, VF_MARK_LINE, "ink thick", "median");
    if (p->look.spread && has_spread(p))
        vf_legend_add(&legend, VF_MARK_WHISKER, "ink", p->look.spread);
    if (p->look.rule_label)
        vf_legend_add(&legend, VF_MARK_LINE, "ink dashed", p->look.rule_label);
    return legend.y;
}

static double plot_height(const struct bench_panel *p)
{
    return p->look.kind == BENCH_BARS ? p->categories.count * category_height(p) : PLOT_HEIGHT;
}

/* From zero, or the least below it, to the most. */
static void set_range(struct plot *plot)
{
    const struct bench_panel *p = plot->p;
    double low = 0, high = p->look.rule_label ? p->look.rule : 0;
    for (size_t i = 0; i < p->point_count; i++) {
        high = fmax(high, p->points[i].high);
        low = fmin(low, p->points[i].low);
    }
    plot->values.low = low;
    plot->values.high = high + (high > low ? SPACE_ABOVE * (high - low) : 1.0);
    plot->values.percent = p->look.percent;
}

static struct plot lay_out(const struct bench_panel *p, double legend, FILE *out)
{
    struct plot plot = {.p = p, .out = out, .height = plot_height(p)};
    bool bars = p->look.kind == BENCH_BARS;
    plot.left = VF_DRAW_MARGIN +
                (bars ? vf_draw_text_width(p->look.categories) + 8 : VF_AXIS_UPRIGHT_WIDTH - 10);
    for (int c = 0; bars && c < p->categories.count; c++)
        plot.left = fmax(plot.left, 24 + vf_draw_text_width(p->categories.items[c]));
    plot.left = fmin(plot.left, NAME_WIDTH_MAX);
    plot.top = legend + (bars ? NAMES_HEIGHT + 4 : 16);
    set_range(&plot);
    plot.values.from = bars ? plot.left : plot.top + plot.height;
    plot.values.to = bars ? RIGHT : plot.top;
    return plot;
}

/* Returns where the next panel begins; out NULL: nothing is drawn. */
static double draw_panel(const struct bench_panel *p, double top, FILE *out)
{
    double legend = draw_legend(p, top + TITLE_HEIGHT + 10, NULL);
    struct plot plot = lay_out(p, legend, out);
    double end = plot.top + plot.height + AXIS_HEIGHT + PANEL_GAP;
    if (!out)
        return end;
    vf_draw_text(out, "panel", "start", VF_DRAW_MARGIN, top + 14, p->look.title);
    draw_legend(p, top + TITLE_HEIGHT + 10, out);
    if (p->look.kind == BENCH_BARS) {
        draw_bars(&plot);
        return end;
    }
    draw_axes(&plot);
    if (p->look.kind == BENCH_LINES)
        draw_lines(&plot);
    else
        draw_dots(&plot);
    return end;
}

static double draw_panels(const struct bench_chart *chart, double top, FILE *out)
{
    for (const struct bench_panel *p = chart->first; p; p = p->next)
        if (p->point_count)
            top = draw_panel(p, top, out);
    return top;
}

void bench_chart_draw(const struct bench_chart *chart, const char *title, const char *subtitle,
                      FILE *out)
{
    double head = vf_draw_head_height(subtitle);
    vf_draw_begin(out, draw_panels(chart, head, NULL), title, subtitle);
    draw_panels(chart, head, out);
    vf_draw_end(out);
}
