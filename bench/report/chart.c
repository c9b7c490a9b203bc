/* The data of a chart; chart_draw.c draws it. */
#include "bench/report/chart_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct bench_panel *bench_panel_add(struct bench_chart *chart, const struct bench_panel_look *look)
{
    struct bench_panel *p = calloc(1, sizeof *p);
    if (!p) {
        chart->failed = true;
        return NULL;
    }
    p->chart = chart;
    p->look = *look;
    if (chart->last)
        chart->last->next = p;
    else
        chart->first = p;
    chart->last = p;
    return p;
}

/* Index of a text in a list, which it joins when it is new; -1 without memory. */
static int name_index(struct bench_names *names, const char *text)
{
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->items[i], text) == 0)
            return i;
    char **items = realloc(names->items, ((size_t)names->count + 1) * sizeof *items);
    if (!items)
        return -1;
    names->items = items;
    items[names->count] = strdup(text);
    return items[names->count] ? names->count++ : -1;
}

void bench_panel_point(struct bench_panel *panel, const char *series, const char *category,
                       double y, double low, double high)
{
    if (!panel || !isfinite(y))
        return;
    int s = name_index(&panel->series, series), c = name_index(&panel->categories, category);
    struct bench_point *points =
        s < 0 || c < 0 ? NULL : realloc(panel->points, (panel->point_count + 1) * sizeof *points);
    if (!points) {
        panel->chart->failed = true;
        return;
    }
    panel->points = points;
    points[panel->point_count++] = (struct bench_point){s, c, y, isfinite(low) && low < y ? low : y,
                                                        isfinite(high) && high > y ? high : y};
}

static void free_names(struct bench_names *names)
{
    for (int i = 0; i < names->count; i++)
        free(names->items[i]);
    free(names->items);
}

void bench_chart_deinit(struct bench_chart *chart)
{
    for (struct bench_panel *p = chart->first, *next; p; p = next) {
        next = p->next;
        free_names(&p->series);
        free_names(&p->categories);
        free(p->points);
        free(p);
    }
    *chart = (struct bench_chart){0};
}
