/* Draws the panels of a chart one below the other. Colours are classes, so that one style sheet
 * serves light and dark ground.
 */
#include "bench/report/chart_internal.h"

#include "common/draw/svg.h"

#include <math.h>
#include <string.h>

/* Pixels. */
#define WIDTH           880.0
#define LEFT            16.0
#define MARGIN_RIGHT    64.0
#define HEAD_HEIGHT     58.0
#define TITLE_HEIGHT    26.0
#define LEGEND_HEIGHT   20.0
#define LEGEND_MARK     22.0 /* before an entry's text */
#define AXIS_HEIGHT     38.0
#define UNIT_HEIGHT     16.0 /* below a level axis */
#define PANEL_GAP       22.0
#define PLOT_HEIGHT     260.0 /* of lines and dots */
#define MARGIN_VALUES   72.0  /* left of lines and dots: the value axis */
#define BAR_HEIGHT      13.0
#define CATEGORY_GAP    10.0
#define LABEL_WIDTH     6.7 /* of a character, roughly */
#define LABEL_WIDTH_MAX 300.0
#define TICK_PX         60.0 /* at least, between two ticks of a level axis */
#define TICK_PX_UPRIGHT 34.0
#define COLOURS         6

struct plot {
    const struct bench_panel *p;
    FILE *out;
    double left, top, width, height;
    double low, high; /* values at the ends of the axis */
};

struct colours {
    const char *ground, *ink, *faint, *line, *grid, *series[COLOURS];
};
static const struct colours light = {
    "#fff", "#222",    "#5b6270",
    "#999", "#e2e5ea", {"#3b6fb6", "#c77416", "#2f8f5b", "#8b5cb8", "#b3261e", "#5b6270"}};
static const struct colours dark = {
    "#16181d", "#e8eaee", "#a5adba",
    "#7a8290", "#2c3038", {"#7fb0ee", "#f0a850", "#66c795", "#c29df2", "#f28b82", "#a5adba"}};

/* Spelled out instead of with CSS variables, which not every renderer knows. */
static void print_colours(FILE *out, const struct colours *c)
{
    fprintf(out,
            ".ground{fill:%s}text{fill:%s}.small{fill:%s}.axis{stroke:%s}.grid{stroke:%s}"
            ".rule,.spread{stroke:%s}\n",
            c->ground, c->ink, c->faint, c->line, c->grid, c->ink);
    for (int i = 0; i < COLOURS; i++)
        fprintf(out, ".f%d{fill:%s}.s%d{stroke:%s}", i, c->series[i], i, c->series[i]);
    fputc('\n', out);
}

static void print_style(FILE *out)
{
    fputs("<style>\n"
          "text{font-family:system-ui,sans-serif;font-size:12px}\n"
          ".title{font-size:16px;font-weight:600}.panel{font-size:13px;font-weight:600}"
          ".small{font-size:11px}\n"
          ".axis,.grid,.line,.rule,.spread{fill:none}.rule{stroke-dasharray:5 3}"
          ".spread{stroke-opacity:.65}.line{stroke-width:2}\n",
          out);
    print_colours(out, &light);
    fputs("@media (prefers-color-scheme:dark){\n", out);
    print_colours(out, &dark);
    fputs("}\n</style>\n", out);
}

static double text_width(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += (*text & 0xc0) != 0x80;
    return LABEL_WIDTH * (double)n;
}

static void print_text(FILE *out, const char *class, const char *anchor, double x, double y,
                       const char *text)
{
    fprintf(out, "<text class=\"%s\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">", class, anchor, x,
            y);
    vf_svg_print_escaped(out, text);
    fputs("</text>\n", out);
}

static const char *value_text(const struct bench_panel *p, double v, char *buf, size_t n)
{
    double shown = p->percent ? 100.0 * v : v;
    int digits = fabs(shown) >= 100 ? 0 : fabs(shown) >= 10 ? 1 : fabs(shown) >= 1 ? 2 : 3;
    snprintf(buf, n, "%.*f%s", digits, shown, p->percent ? "%" : "");
    return buf;
}

/* ---- scales ------------------------------------------------------------------------------- */

static void set_range(struct plot *plot)
{
    plot->low = 0.0;
    plot->high = isfinite(plot->p->rule) ? plot->p->rule : 0.0;
    for (size_t i = 0; i < plot->p->point_count; i++) {
        plot->high = fmax(plot->high, plot->p->points[i].high);
        plot->low = fmin(plot->low, plot->p->points[i].low);
    }
    double span = plot->high - plot->low;
    plot->high += span > 0 ? 0.06 * span : 1.0;
}

static double along(const struct plot *plot, double v)
{
    return (v - plot->low) / (plot->high - plot->low);
}

static double x_of(const struct plot *plot, double v)
{
    return plot->left + plot->width * along(plot, v);
}

static double y_of(const struct plot *plot, double v)
{
    return plot->top + plot->height * (1.0 - along(plot, v));
}

static double tick_step(const struct plot *plot, double px, double least_px)
{
    double scale = plot->p->percent ? 100.0 : 1.0;
    return vf_svg_tick_step(scale * least_px * (plot->high - plot->low) / px) / scale;
}

static const char *tick_text(const struct plot *plot, double v, char *buf, size_t n)
{
    snprintf(buf, n, "%.6g%s", plot->p->percent ? 100.0 * v : v, plot->p->percent ? "%" : "");
    return buf;
}

/* ---- bars --------------------------------------------------------------------------------- */

static double category_height(const struct bench_panel *p)
{
    return p->series.count * BAR_HEIGHT + CATEGORY_GAP;
}

static void draw_value_axis_below(const struct plot *plot)
{
    double step = tick_step(plot, plot->width, TICK_PX), bottom = plot->top + plot->height;
    char text[48];
    for (double v = ceil(plot->low / step) * step; v <= plot->high; v += step) {
        fprintf(plot->out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", x_of(plot, v),
                plot->top, bottom);
        print_text(plot->out, "small", "middle", x_of(plot, v), bottom + 16,
                   tick_text(plot, v, text, sizeof text));
    }
    fprintf(plot->out, "<path class=\"axis\" d=\"M%.1f %.1fV%.1f\"/>\n", x_of(plot, 0), plot->top,
            bottom);
    print_text(plot->out, "small", "end", plot->left + plot->width, bottom + 34, plot->p->unit);
}

static void draw_bars(const struct plot *plot)
{
    const struct bench_panel *p = plot->p;
    draw_value_axis_below(plot);
    for (int c = 0; c < p->categories.count; c++)
        print_text(plot->out, "label", "end", plot->left - 8,
                   plot->top + (c + 0.5) * category_height(p) + 4, p->categories.items[c]);
    for (size_t i = 0; i < p->point_count; i++) {
        const struct bench_point *pt = &p->points[i];
        double y = plot->top + pt->category * category_height(p) + CATEGORY_GAP / 2 +
                   pt->series * BAR_HEIGHT;
        double from = x_of(plot, fmin(pt->y, 0)), to = x_of(plot, fmax(pt->y, 0));
        char text[48];
        fprintf(plot->out,
                "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
                pt->series % COLOURS, from, y + 1, fmax(to - from, 0.5), BAR_HEIGHT - 2);
        if (pt->high > pt->low)
            fprintf(plot->out,
                    "<path class=\"spread\" d=\"M%.1f %.1fH%.1fm0 -3v6M%.1f %.1fv6\"/>\n",
                    x_of(plot, pt->low), y + BAR_HEIGHT / 2, x_of(plot, pt->high),
                    x_of(plot, pt->low), y + BAR_HEIGHT / 2 - 3);
        print_text(plot->out, "small", "start", x_of(plot, fmax(pt->high, 0)) + 5,
                   y + BAR_HEIGHT - 3, value_text(p, pt->y, text, sizeof text));
    }
    if (isfinite(p->rule))
        fprintf(plot->out, "<path class=\"rule\" d=\"M%.1f %.1fv%.1f\"/>\n", x_of(plot, p->rule),
                plot->top, plot->height);
}

/* ---- lines and dots ----------------------------------------------------------------------- */

static double category_x(const struct plot *plot, int category)
{
    return plot->left + plot->width * (category + 0.5) / plot->p->categories.count;
}

static void draw_axes(const struct plot *plot)
{
    double step = tick_step(plot, plot->height, TICK_PX_UPRIGHT), bottom = plot->top + plot->height;
    char text[48];
    for (double v = ceil(plot->low / step) * step; v <= plot->high; v += step) {
        fprintf(plot->out, "<path class=\"grid\" d=\"M%.1f %.1fh%.1f\"/>\n", plot->left,
                y_of(plot, v), plot->width);
        print_text(plot->out, "small", "end", plot->left - 8, y_of(plot, v) + 4,
                   tick_text(plot, v, text, sizeof text));
    }
    fprintf(plot->out, "<path class=\"axis\" d=\"M%.1f %.1fh%.1f\"/>\n", plot->left, bottom,
            plot->width);
    print_text(plot->out, "small", "start", 16, plot->top - 6, plot->p->unit);
    for (int c = 0; c < plot->p->categories.count; c++)
        print_text(plot->out, "label", "middle", category_x(plot, c), bottom + 18,
                   plot->p->categories.items[c]);
    if (isfinite(plot->p->rule))
        fprintf(plot->out, "<path class=\"rule\" d=\"M%.1f %.1fh%.1f\"/>\n", plot->left,
                y_of(plot, plot->p->rule), plot->width);
}

static void draw_lines(const struct plot *plot)
{
    const struct bench_panel *p = plot->p;
    for (int s = 0; s < p->series.count; s++) {
        int drawn = 0;
        for (size_t i = 0; i < p->point_count; i++) {
            if (p->points[i].series != s)
                continue;
            double x = category_x(plot, p->points[i].category), y = y_of(plot, p->points[i].y);
            if (drawn++)
                fprintf(plot->out, "L%.1f %.1f", x, y);
            else
                fprintf(plot->out, "<path class=\"line s%d\" d=\"M%.1f %.1f", s % COLOURS, x, y);
        }
        fputs("\"/>\n", plot->out);
    }
}

static void draw_marks(const struct plot *plot)
{
    const struct bench_panel *p = plot->p;
    double slot = plot->width / p->categories.count;
    for (size_t i = 0; i < p->point_count; i++) {
        const struct bench_point *pt = &p->points[i];
        double x = category_x(plot, pt->category);
        if (p->kind == BENCH_DOTS) /* spread out evenly, so that clusters show */
            x += slot * 0.6 * (fmod((double)i * 0.618034, 1.0) - 0.5);
        if (pt->high > pt->low)
            fprintf(plot->out, "<path class=\"spread\" d=\"M%.1f %.1fV%.1f\"/>\n", x,
                    y_of(plot, pt->low), y_of(plot, pt->high));
        fprintf(plot->out,
                "<circle class=\"f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill-opacity=\"%s\"/>\n",
                pt->series % COLOURS, x, y_of(plot, pt->y), p->kind == BENCH_DOTS ? "2.5" : "3.5",
                p->kind == BENCH_DOTS ? ".6" : "1");
    }
}

/* ---- panels ------------------------------------------------------------------------------- */

/* Walks over the legend's entries, several lines of them where they need it, and draws them unless
 * out is NULL. Returns the lines. */
static int draw_legend(const struct bench_panel *p, double y, FILE *out)
{
    double x = LEFT;
    int lines = 1, entries = p->series.count + isfinite(p->rule);
    for (int s = 0; s < entries; s++) {
        bool rule = s == p->series.count;
        const char *name = !rule ? p->series.items[s] : p->rule_label ? p->rule_label : "";
        double width = LEGEND_MARK + text_width(name) + 16;
        if (x + width > WIDTH && x > LEFT) {
            x = LEFT;
            y += LEGEND_HEIGHT;
            lines++;
        }
        if (out && rule)
            fprintf(out, "<path class=\"rule\" d=\"M%.1f %.1fh18\"/>\n", x, y - 4);
        else if (out)
            fprintf(out, "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"10\"/>\n",
                    s % COLOURS, x, y - 9);
        if (out)
            print_text(out, "label", "start", x + LEGEND_MARK, y, name);
        x += width;
    }
    return lines;
}

static double plot_height(const struct bench_panel *p)
{
    return p->kind == BENCH_BARS ? p->categories.count * category_height(p) : PLOT_HEIGHT;
}

static double legend_height(const struct bench_panel *p)
{
    return draw_legend(p, 0, NULL) * LEGEND_HEIGHT;
}

static double panel_height(const struct bench_panel *p)
{
    double unit = p->kind == BENCH_BARS && *p->unit ? UNIT_HEIGHT : 0;
    return TITLE_HEIGHT + legend_height(p) + plot_height(p) + AXIS_HEIGHT + unit + PANEL_GAP;
}

static void draw_panel(const struct bench_panel *p, double top, FILE *out)
{
    struct plot plot = {.p = p, .out = out, .left = MARGIN_VALUES};
    for (int c = 0; p->kind == BENCH_BARS && c < p->categories.count; c++)
        plot.left = fmax(plot.left, 24 + text_width(p->categories.items[c]));
    plot.left = fmin(plot.left, LABEL_WIDTH_MAX);
    plot.top = top + TITLE_HEIGHT + legend_height(p) + (p->kind == BENCH_BARS ? 4 : 14);
    plot.width = WIDTH - MARGIN_RIGHT - plot.left;
    plot.height = plot_height(p);
    set_range(&plot);
    print_text(out, "panel", "start", 16, top + 14, p->title);
    draw_legend(p, top + TITLE_HEIGHT + 8, out);
    if (p->kind == BENCH_BARS) {
        draw_bars(&plot);
        return;
    }
    draw_axes(&plot);
    if (p->kind == BENCH_LINES)
        draw_lines(&plot);
    draw_marks(&plot);
}

void bench_chart_draw(const struct bench_chart *chart, const char *title, const char *subtitle,
                      FILE *out)
{
    double height = HEAD_HEIGHT;
    for (const struct bench_panel *p = chart->first; p; p = p->next)
        height += p->point_count ? panel_height(p) : 0;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\">\n",
            WIDTH, height, WIDTH, height);
    print_style(out);
    fprintf(out, "<rect class=\"ground\" width=\"100%%\" height=\"100%%\"/>\n");
    print_text(out, "title", "start", 16, 26, title);
    print_text(out, "small", "start", 16, 44, subtitle);
    double top = HEAD_HEIGHT;
    for (const struct bench_panel *p = chart->first; p; p = p->next) {
        if (!p->point_count)
            continue;
        draw_panel(p, top, out);
        top += panel_height(p);
    }
    fprintf(out, "</svg>\n");
}
