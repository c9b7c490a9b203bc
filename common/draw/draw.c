#include "common/draw/draw.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define TITLE_Y         26.0
#define SUBTITLE_Y      46.0
#define SUBTITLE_LINE   16.0
#define HEAD_GAP        18.0
#define TITLE_CHAR      9.6 /* widths of a character, roughly */
#define LABEL_CHAR      7.0
#define SMALL_CHAR      6.3
#define LEGEND_MARK     30.0 /* from an entry's mark to its text */
#define LEGEND_GAP      18.0
#define TICK_PX         64.0 /* at least, between two numbers of a level axis */
#define TICK_PX_UPRIGHT 34.0

/* ---- style ---------------------------------------------------------------------------------- */

struct colours {
    const char *ground, *band, *ink, *faint, *line, *grid, *palette[VF_DRAW_COLOURS];
};
static const struct colours light = {
    "#fff",
    "#f3f4f6",
    "#222",
    "#5b6270",
    "#999",
    "#e2e5ea",
    {"#3b6fb6", "#a85c0a", "#26794b", "#8552b4", "#b3261e", "#5b6270"}};
static const struct colours dark = {
    "#16181d",
    "#20242b",
    "#e8eaee",
    "#a5adba",
    "#7a8290",
    "#2f343d",
    {"#7fb0ee", "#f0a850", "#66c795", "#c29df2", "#f28b82", "#a5adba"}};

/* Spelled out instead of with CSS variables, which not every renderer knows. */
static void print_colours(FILE *out, const struct colours *c)
{
    fprintf(out,
            ".ground{fill:%s}.band{fill:%s}.edge{stroke:%s}text{fill:%s}"
            ".small,.axis-title,.tip{fill:%s}.in{fill:%s}\n"
            ".axis{stroke:%s}.grid{stroke:%s}.ink{stroke:%s}\n",
            c->ground, c->band, c->ground, c->ink, c->faint, c->ground, c->line, c->grid, c->ink);
    for (int i = 0; i < VF_DRAW_COLOURS; i++)
        fprintf(out, ".f%d{fill:%s}.s%d{stroke:%s}", i, c->palette[i], i, c->palette[i]);
    fputc('\n', out);
}

static void print_style(FILE *out)
{
    fputs("<style>\n"
          "text{font-family:system-ui,sans-serif;font-size:12px}\n"
          ".title{font-size:16px;font-weight:600}.panel{font-size:13px;font-weight:600}"
          ".small,.axis-title,.in{font-size:11px}.axis-title{font-style:italic}\n"
          ".axis,.grid,.ink,.s0,.s1,.s2,.s3,.s4,.s5{fill:none}.dashed{stroke-dasharray:5 3}"
          ".dotted{stroke-dasharray:1.5 2.5}.thick{stroke-width:2}\n",
          out);
    print_colours(out, &light);
    fputs("@media (prefers-color-scheme:dark){\n", out);
    print_colours(out, &dark);
    fputs("}\n</style>\n"
          "<defs><marker id=\"tip\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" "
          "markerUnits=\"userSpaceOnUse\" "
          "markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path class=\"tip\" d=\"M0 0L6 3L0 "
          "6z\"/></marker>"
          "</defs>\n",
          out);
}

/* ---- text ----------------------------------------------------------------------------------- */

static void print_escaped(FILE *out, const char *s, size_t n)
{
    for (; n && *s; s++, n--) {
        if (*s == '<')
            fputs("&lt;", out);
        else if (*s == '>')
            fputs("&gt;", out);
        else if (*s == '&')
            fputs("&amp;", out);
        else if ((unsigned char)*s >= 0x20)
            fputc(*s, out);
    }
}

void vf_draw_escaped(FILE *out, const char *s)
{
    print_escaped(out, s, strlen(s));
}

static void text_n(FILE *out, const char *class, const char *anchor, double x, double y,
                   const char *text, size_t n)
{
    fprintf(out, "<text class=\"%s\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">", class, anchor, x,
            y);
    print_escaped(out, text, n);
    fputs("</text>\n", out);
}

void vf_draw_text(FILE *out, const char *class, const char *anchor, double x, double y,
                  const char *text)
{
    text_n(out, class, anchor, x, y, text, strlen(text));
}

static size_t characters(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += (*text & 0xc0) != 0x80;
    return n;
}

double vf_draw_text_width(const char *text)
{
    return LABEL_CHAR * (double)characters(text);
}

/* Text broken between words, where a line is full; returns the lines. out NULL: only counts. */
static int paragraph(FILE *out, double y, const char *text)
{
    size_t most = (size_t)((VF_DRAW_WIDTH - 2 * VF_DRAW_MARGIN) / SMALL_CHAR);
    int lines = 0;
    while (*text) {
        size_t n = strlen(text), cut = n <= most ? n : most;
        while (cut < n && cut > 0 && text[cut] != ' ')
            cut--;
        cut = cut ? cut : n; /* a word as long as a line stays whole */
        if (out)
            text_n(out, "small", "start", VF_DRAW_MARGIN, y + lines * SUBTITLE_LINE, text, cut);
        lines++;
        text += cut + (text[cut] == ' ');
    }
    return lines;
}

/* The end of a title that is too long says more than its front, which is a folder. */
static const char *title_end(const char *title, bool *whole)
{
    size_t most = (size_t)((VF_DRAW_WIDTH - 2 * VF_DRAW_MARGIN) / TITLE_CHAR) - 1,
           n = strlen(title);
    *whole = characters(title) <= most;
    while (characters(title) > most || (*title & 0xc0) == 0x80)
        title++, n--;
    return title;
}

/* ---- document ------------------------------------------------------------------------------- */

double vf_draw_head_height(const char *subtitle)
{
    return SUBTITLE_Y + (paragraph(NULL, 0, subtitle) - 1) * SUBTITLE_LINE + HEAD_GAP;
}

void vf_draw_begin(FILE *out, double height, const char *title, const char *subtitle)
{
    bool whole;
    const char *end = title_end(title, &whole);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\">\n",
            VF_DRAW_WIDTH, height, VF_DRAW_WIDTH, height);
    print_style(out);
    fprintf(out, "<rect class=\"ground\" width=\"100%%\" height=\"100%%\"/>\n");
    fprintf(out, "<text class=\"title\" x=\"%.1f\" y=\"%.1f\">%s", VF_DRAW_MARGIN, TITLE_Y,
            whole ? "" : "…");
    vf_draw_escaped(out, end);
    fputs("</text>\n", out);
    paragraph(out, SUBTITLE_Y, subtitle);
}

void vf_draw_end(FILE *out)
{
    fputs("</svg>\n", out);
}

/* ---- axes ----------------------------------------------------------------------------------- */

double vf_axis_at(const struct vf_axis *a, double value)
{
    return a->from + (a->to - a->from) * (value - a->low) / (a->high - a->low);
}

double vf_axis_step(double least)
{
    static const double steps[] = {1, 2, 5, 10};
    double power = pow(10.0, floor(log10(least)));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i] * power >= least)
            return steps[i] * power;
    return 10.0 * power;
}

/* Between two ticks that are least_px apart or more. */
static double tick_step(const struct vf_axis *a, double least_px)
{
    double scale = a->percent ? 100.0 : 1.0;
    return vf_axis_step(scale * least_px * (a->high - a->low) / fabs(a->to - a->from)) / scale;
}

static const char *tick_text(const struct vf_axis *a, double value, char *buf, size_t n)
{
    snprintf(buf, n, "%.6g%s", a->percent ? 100.0 * value : value, a->percent ? "%" : "");
    return buf;
}

void vf_axis_draw_level(FILE *out, const struct vf_axis *a, double top, double bottom,
                        double numbers)
{
    double step = tick_step(a, TICK_PX);
    char text[48];
    for (double i = ceil(a->low / step); i * step <= a->high; i++) {
        double x = vf_axis_at(a, i * step);
        if (bottom > top)
            fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", x, top, bottom);
        vf_draw_text(out, "small", "middle", x, numbers, tick_text(a, i * step, text, sizeof text));
    }
}

void vf_axis_draw_upright(FILE *out, const struct vf_axis *a, double left, double right,
                          const char *title)
{
    double step = tick_step(a, TICK_PX_UPRIGHT), x = left - VF_AXIS_UPRIGHT_WIDTH + 28,
           y = (a->from + a->to) / 2;
    char text[48];
    for (double i = ceil(a->low / step); i * step <= a->high; i++) {
        double at = vf_axis_at(a, i * step);
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", left, at, right);
        vf_draw_text(out, "small", "end", left - 6, at + 4,
                     tick_text(a, i * step, text, sizeof text));
    }
    fprintf(out,
            "<text class=\"axis-title\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\" "
            "transform=\"rotate(-90 %.1f %.1f)\">",
            x, y, x, y);
    vf_draw_escaped(out, title);
    fputs("</text>\n", out);
}

/* ---- legends -------------------------------------------------------------------------------- */

static void draw_mark(const struct vf_legend *l, enum vf_mark mark, const char *class)
{
    double x = l->x, y = l->y - 4;
    switch (mark) {
    case VF_MARK_BOX:
        fprintf(l->out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"24\" height=\"10\"/>\n",
                class, x, y - 5);
        break;
    case VF_MARK_LINE:
        fprintf(l->out, "<path class=\"%s\" d=\"M%.1f %.1fh24\"/>\n", class, x, y);
        break;
    case VF_MARK_ARROW:
        fprintf(l->out, "<path class=\"%s\" d=\"M%.1f %.1fh24\" marker-end=\"url(#tip)\"/>\n",
                class, x, y);
        break;
    case VF_MARK_WHISKER:
        fprintf(l->out, "<path class=\"%s\" d=\"M%.1f %.1fv6m0 -3h24m0 -3v6\"/>\n", class, x,
                y - 3);
        break;
    case VF_MARK_DOT:
        fprintf(l->out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", class, x + 12,
                y);
        break;
    }
}

void vf_legend_add(struct vf_legend *l, enum vf_mark mark, const char *class, const char *text)
{
    double width = LEGEND_MARK + vf_draw_text_width(text) + LEGEND_GAP;
    if (l->x + width > VF_DRAW_WIDTH && l->x > VF_DRAW_MARGIN) {
        l->x = VF_DRAW_MARGIN;
        l->y += VF_LEGEND_LINE;
    }
    if (l->out) {
        draw_mark(l, mark, class);
        vf_draw_text(l->out, "label", "start", l->x + LEGEND_MARK, l->y, text);
    }
    l->x += width;
}
