/* What a chart is made of; for chart.c and chart_svg.c. */
#ifndef VF_BENCH_REPORT_CHART_INTERNAL_H
#define VF_BENCH_REPORT_CHART_INTERNAL_H

#include "bench/report/chart.h"

struct bench_names {
    char **items;
    int count;
};

struct bench_point {
    int series, category;
    double y, low, high;
};

struct bench_panel {
    struct bench_chart *chart;
    struct bench_panel *next;
    enum bench_chart_kind kind;
    char *title, *unit;
    bool percent;
    struct bench_names series, categories;
    struct bench_point *points;
    size_t point_count;
    double rule; /* NAN: none */
    char *rule_label;
};

#endif
