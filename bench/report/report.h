/* One benchmark's result, formatted once: tables on stdout, or one JSON object with --json, and
 * with --svg its chart.
 *
 * A report collects facts (top-level keys), tables (arrays of objects) and panels. Numbers that
 * aren't finite are "-" in a table and null in JSON. Collecting never fails: memory that ran out is
 * reported by bench_report_end.
 */
#ifndef VF_BENCH_REPORT_REPORT_H
#define VF_BENCH_REPORT_REPORT_H

#include "bench/bench.h"
#include "bench/report/chart.h"

#include <math.h>

enum bench_format { BENCH_TEXT, BENCH_INT, BENCH_1, BENCH_2, BENCH_3, BENCH_4, BENCH_PERCENT };
struct bench_column {
    const char *key;   /* in JSON */
    const char *title; /* in the table; NULL: JSON only */
    enum bench_format format;
};

struct bench_cell {
    const char *text; /* copied; NULL: */
    double number;
};
#define BENCH_STR(s)                                                                               \
    {                                                                                              \
        .text = (s)                                                                                \
    }
#define BENCH_NUM(v)                                                                               \
    {                                                                                              \
        .number = (double)(v)                                                                      \
    }

struct bench_report;
struct bench_report *bench_report_begin(const char *name);
void bench_report_fact(struct bench_report *r, const char *key, double value);
void bench_report_fact_text(struct bench_report *r, const char *key, const char *value);
/* A line above the tables; not in JSON. */
void bench_report_line(struct bench_report *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Rows go to the last table begun; columns (caller's, constant) outlive the report. A title NULL
 * prints none. */
void bench_report_table(struct bench_report *r, const char *key, const char *title,
                        const struct bench_column *columns, size_t count);
void bench_report_row(struct bench_report *r, const struct bench_cell *cells);
struct bench_chart *bench_report_chart(struct bench_report *r);
/* Writes everything when code is VF_OK (svg: a file, or NULL), frees the report in any case and
 * returns the first fault. NULL is fine. */
enum vf_code bench_report_end(struct bench_report *r, bool json, const char *svg, enum vf_code code,
                              struct vf_err *err);

#endif
