/* Drawings as SVG, one page wide: what the pictures of plan and the charts of vflow-bench share.
 *
 * Every colour is a class of one style sheet, which says what it is on light and on dark ground:
 * f0 to f5 fill a shape with a colour of the palette, s0 to s5 stroke one; text is "title",
 * "panel", "label", "small", "axis-title" or "in" (on a filled shape). Lengths are pixels, widths
 * of text are estimates. Functions print to a stream, whose errors the caller looks at.
 */
#ifndef VF_COMMON_DRAW_DRAW_H
#define VF_COMMON_DRAW_DRAW_H

#include <stdbool.h>
#include <stdio.h>

#define VF_DRAW_WIDTH   900.0
#define VF_DRAW_MARGIN  16.0 /* left and right of everything */
#define VF_DRAW_COLOURS 6

/* Where what follows a head of this subtitle begins. */
double vf_draw_head_height(const char *subtitle);
/* The document, its ground, a title (cut at its front when it is too long) and a subtitle in as
 * many lines as it takes. */
void vf_draw_begin(FILE *out, double height, const char *title, const char *subtitle);
void vf_draw_end(FILE *out);

/* Text content of an element: markup is escaped, control characters are left out. */
void vf_draw_escaped(FILE *out, const char *s);
/* anchor: "start", "middle" or "end". */
void vf_draw_text(FILE *out, const char *class, const char *anchor, double x, double y,
                  const char *text);
double vf_draw_text_width(const char *text); /* of a label */

/* A scale: values low to high lie at pixels from to to. */
struct vf_axis {
    double low, high, from, to;
    bool percent; /* values are shares, 1 being 100% */
};
double vf_axis_at(const struct vf_axis *a, double value);
/* The smallest of 1, 2, 5 x 10^n that is at least `least` (> 0). */
double vf_axis_step(double least);
/* Below a plot: a grid from top to bottom, where there is any, and numbers on a baseline. */
void vf_axis_draw_level(FILE *out, const struct vf_axis *a, double top, double bottom,
                        double numbers);
/* Left of a plot: a grid from left to right, numbers before it and the title upright before
 * those. from is the bottom. */
void vf_axis_draw_upright(FILE *out, const struct vf_axis *a, double left, double right,
                          const char *title);
#define VF_AXIS_UPRIGHT_WIDTH 72.0

/* Entries side by side, in as many lines as they take. out NULL: nothing is drawn. */
enum vf_mark { VF_MARK_BOX, VF_MARK_LINE, VF_MARK_ARROW, VF_MARK_WHISKER, VF_MARK_DOT };
struct vf_legend {
    FILE *out;
    double x, y; /* of the next entry; starts at VF_DRAW_MARGIN and the first line's baseline */
};
void vf_legend_add(struct vf_legend *l, enum vf_mark mark, const char *class, const char *text);
#define VF_LEGEND_LINE 20.0

#endif
