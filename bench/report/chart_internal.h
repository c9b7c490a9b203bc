/* What a chart is made of; for chart.c and chart_draw.c. */
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
    struct bench_panel_look look;
    struct bench_names series, categories;
    struct bench_point *points;
    size_t point_count;
};

#endif
