/* The charts of vflow-bench: a column of panels in one SVG.
 *
 * A panel has categories along one axis and a value of each series at a category, with the spread
 * of its samples: horizontal bars, lines over the categories, or the samples themselves as dots
 * with their median. Names of series and categories are copied; texts of a look are constants.
 * When memory runs out the chart says so once, at the end.
 */
#ifndef VF_BENCH_REPORT_CHART_H
#define VF_BENCH_REPORT_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum bench_chart_kind { BENCH_BARS, BENCH_LINES, BENCH_DOTS };

struct bench_panel_look {
    enum bench_chart_kind kind;
    const char *title;
    const char *values;     /* what the value axis shows, and its unit */
    const char *categories; /* what the other axis shows */
    const char *spread;     /* what low and high of a point are; NULL: no point has any */
    bool percent;           /* values are shares, 1 being 100% */
    double rule;            /* a dashed line across at a value that means something; */
    const char *rule_label; /* NULL: none */
};

struct bench_panel;
struct bench_chart { /* starts zeroed */
    struct bench_panel *first, *last;
    bool failed; /* out of memory */
};

struct bench_panel *bench_panel_add(struct bench_chart *chart, const struct bench_panel_look *look);
/* low and high: the spread, equal to y or NAN where there is none. BENCH_DOTS: any number of points
 * of one series at one category. Categories and series appear in the order they are first named. */
void bench_panel_point(struct bench_panel *panel, const char *series, const char *category,
                       double y, double low, double high);

/* One SVG of all panels that have points, under a title and a line about the machine. */
void bench_chart_draw(const struct bench_chart *chart, const char *title, const char *subtitle,
                      FILE *out);
void bench_chart_deinit(struct bench_chart *chart);

#endif
