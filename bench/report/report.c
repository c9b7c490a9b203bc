/* A report is a JSON object from the start; tables are printed out of it. */
#include "bench/report/report.h"

#include "common/base/json.h"
#include "common/base/out_file.h"
#include "common/base/util.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TABLES_MAX  8
#define COLUMNS_MAX 20
#define LINE_MAX_   512

struct table {
    const char *title;
    const struct bench_column *columns;
    size_t column_count;
    json_t *rows; /* borrowed from root */
};

struct bench_report {
    const char *name;
    json_t *root;
    char *lines; /* with newlines */
    struct table tables[TABLES_MAX];
    size_t table_count;
    struct bench_chart chart;
    bool failed; /* out of memory */
};

/* ---- collecting --------------------------------------------------------------------------- */

static void set(struct bench_report *r, json_t *object, const char *key, json_t *value)
{
    if (!value || json_object_set_new(object, key, value) != 0)
        r->failed = true;
}

struct bench_report *bench_report_begin(const char *name)
{
    struct bench_report *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->name = name;
    r->root = json_object();
    r->failed = !r->root;
    if (r->root)
        set(r, r->root, "benchmark", json_string(name));
    return r;
}

static json_t *number(double v)
{
    return !isfinite(v)                                    ? json_null()
           : v == floor(v) && fabs(v) < 9007199254740992.0 ? json_integer((json_int_t)v)
                                                           : json_real(v);
}

void bench_report_fact(struct bench_report *r, const char *key, double value)
{
    if (r && r->root)
        set(r, r->root, key, number(value));
}

void bench_report_fact_text(struct bench_report *r, const char *key, const char *value)
{
    if (r && r->root)
        set(r, r->root, key, json_string(value));
}

void bench_report_line(struct bench_report *r, const char *fmt, ...)
{
    char line[LINE_MAX_];
    if (!r)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    size_t have = r->lines ? strlen(r->lines) : 0, more = strlen(line);
    char *lines = realloc(r->lines, have + more + 2);
    if (!lines) {
        r->failed = true;
        return;
    }
    memcpy(lines + have, line, more);
    memcpy(lines + have + more, "\n", 2);
    r->lines = lines;
}

void bench_report_table(struct bench_report *r, const char *key, const char *title,
                        const struct bench_column *columns, size_t count)
{
    if (!r || !r->root)
        return;
    VF_ASSERT(r->table_count < TABLES_MAX && count <= COLUMNS_MAX);
    json_t *rows = json_array();
    set(r, r->root, key, rows);
    r->tables[r->table_count++] = (struct table){title, columns, count, rows};
}

void bench_report_row(struct bench_report *r, const struct bench_cell *cells)
{
    if (!r || r->failed)
        return;
    const struct table *t = &r->tables[r->table_count - 1];
    json_t *row = json_object();
    if (!row || json_array_append_new(t->rows, row) != 0) {
        r->failed = true;
        return;
    }
    for (size_t i = 0; i < t->column_count; i++)
        set(r, row, t->columns[i].key,
            t->columns[i].format != BENCH_TEXT ? number(cells[i].number)
            : cells[i].text                    ? json_string(cells[i].text)
                                               : json_null());
}

struct bench_chart *bench_report_chart(struct bench_report *r)
{
    static struct bench_chart lost; /* of a report that couldn't begin; draws nothing */
    return r ? &r->chart : &lost;
}

/* ---- tables ------------------------------------------------------------------------------- */

static const char *cell_text(const struct bench_column *column, const json_t *value, char *buf,
                             size_t n)
{
    static const int digits[] = {
        [BENCH_INT] = 0, [BENCH_1] = 1, [BENCH_2] = 2, [BENCH_3] = 3, [BENCH_4] = 4};
    if (json_is_string(value))
        return json_string_value(value);
    if (!json_is_number(value))
        return "-";
    double v = json_number_value(value);
    if (column->format == BENCH_PERCENT)
        snprintf(buf, n, "%.1f%%", 100.0 * v);
    else
        snprintf(buf, n, "%.*f", digits[column->format], v);
    return buf;
}

static int characters(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += (*text & 0xc0) != 0x80;
    return n;
}

static void print_cell(const struct bench_column *column, const char *text, int width, bool last)
{
    int pad = width - characters(text);
    if (column->format == BENCH_TEXT)
        printf("%s%*s", text, last ? 0 : pad, "");
    else
        printf("%*s%s", pad, "", text);
    printf("%s", last ? "\n" : "  ");
}

static void print_table(const struct table *t)
{
    int width[COLUMNS_MAX] = {0};
    size_t last = 0;
    char buf[64];
    for (size_t c = 0; c < t->column_count; c++) {
        if (!t->columns[c].title)
            continue;
        last = c;
        width[c] = characters(t->columns[c].title);
        for (size_t i = 0; i < json_array_size(t->rows); i++) {
            const json_t *v = json_object_get(json_array_get(t->rows, i), t->columns[c].key);
            int n = characters(cell_text(&t->columns[c], v, buf, sizeof buf));
            width[c] = n > width[c] ? n : width[c];
        }
    }
    if (t->title)
        printf("%s\n", t->title);
    for (size_t c = 0; c < t->column_count; c++)
        if (t->columns[c].title)
            print_cell(&t->columns[c], t->columns[c].title, width[c], c == last);
    for (size_t i = 0; i < json_array_size(t->rows); i++)
        for (size_t c = 0; c < t->column_count; c++) {
            const json_t *v = json_object_get(json_array_get(t->rows, i), t->columns[c].key);
            if (t->columns[c].title)
                print_cell(&t->columns[c], cell_text(&t->columns[c], v, buf, sizeof buf), width[c],
                           c == last);
        }
}

static void print_tables(const struct bench_report *r)
{
    if (r->lines)
        fputs(r->lines, stdout);
    for (size_t t = 0; t < r->table_count; t++) {
        if (!json_array_size(r->tables[t].rows))
            continue;
        if (t || r->lines)
            printf("\n");
        print_table(&r->tables[t]);
    }
}

/* ---- the end ------------------------------------------------------------------------------ */

/* "Vendor model", or what the architecture is called. */
static void cpu_name(char *out, size_t n)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(out, n, "unknown CPU");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, n, "%s", colon + 2);
        break;
    }
    if (f)
        fclose(f);
}

static enum vf_code write_svg(struct bench_report *r, const char *path, struct vf_err *err)
{
    struct vf_out_file *file;
    char cpu[128], title[160], subtitle[256];
    enum vf_code code = vf_out_file_create(path, &file, err);
    if (code)
        return code;
    FILE *f = fdopen(dup(vf_out_file_fd(file)), "w");
    if (!f) {
        code = vf_err_errno(err, VF_ERR_IO, errno, "%s: can't write", path);
        vf_out_file_abandon(file);
        return code;
    }
    cpu_name(cpu, sizeof cpu);
    snprintf(title, sizeof title, "vflow-bench %s", r->name);
    snprintf(subtitle, sizeof subtitle, "%s, %ld CPUs", cpu, sysconf(_SC_NPROCESSORS_ONLN));
    bench_chart_draw(&r->chart, title, subtitle, f);
    bool bad = ferror(f);
    if (fclose(f) != 0 || bad) {
        code = vf_err_errno(err, VF_ERR_IO, errno, "%s: can't write", path);
        vf_out_file_abandon(file);
        return code;
    }
    return vf_out_file_commit(file, err);
}

static enum vf_code write_out(struct bench_report *r, bool json, const char *svg,
                              struct vf_err *err)
{
    if (r->failed || r->chart.failed)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the result of %s", r->name);
    if (svg) {
        enum vf_code code = write_svg(r, svg, err);
        if (code)
            return code;
    }
    if (!json) {
        print_tables(r);
        return VF_OK;
    }
    if (json_dumpf(r->root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0)
        return vf_err_set(err, VF_ERR_IO, "can't write the JSON output");
    printf("\n");
    return VF_OK;
}

enum vf_code bench_report_end(struct bench_report *r, bool json, const char *svg, enum vf_code code,
                              struct vf_err *err)
{
    if (!r)
        return code ? code : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the result");
    if (!code)
        code = write_out(r, json, svg, err);
    json_decref(r->root);
    bench_chart_deinit(&r->chart);
    free(r->lines);
    free(r);
    return code;
}
