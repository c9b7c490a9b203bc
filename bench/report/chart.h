/* The drawings of vflow-bench: a column of panels in one SVG, readable on light and dark ground.
 *
 * A panel has categories along one axis and a value of each series at a category, with the spread
 * of its samples: horizontal bars, lines over the categories, or the samples themselves as dots.
 * Panels copy every text. When memory runs out the chart says so once, at the end.
 */
#ifndef VF_BENCH_REPORT_CHART_H
#define VF_BENCH_REPORT_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum bench_chart_kind { BENCH_BARS, BENCH_LINES, BENCH_DOTS };

struct bench_panel;
struct bench_chart { /* starts zeroed */
    struct bench_panel *first, *last;
    bool failed; /* out of memory */
};

/* unit stands at the value axis; percent values are shares, 1 being 100%. */
struct bench_panel *bench_panel_add(struct bench_chart *chart, enum bench_chart_kind kind,
                                    const char *title, const char *unit, bool percent);
/* low and high: the spread, equal to y where there is none. BENCH_DOTS: any number of points of
 * one series at one category. Categories and series appear in the order they are first named. */
void bench_panel_point(struct bench_panel *panel, const char *series, const char *category,
                       double y, double low, double high);
/* A dashed line across the panel at a value that means something. */
void bench_panel_rule(struct bench_panel *panel, double y, const char *label);

/* One SVG of all panels under a title and a line about the machine. */
void bench_chart_draw(const struct bench_chart *chart, const char *title, const char *subtitle,
                      FILE *out);
void bench_chart_deinit(struct bench_chart *chart);

#endif
