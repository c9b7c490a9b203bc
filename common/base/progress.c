#include "common/base/progress.h"

#include "common/base/clock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define FIRST_NS      VF_MS(500) /* shorter work shows nothing */
#define PAUSE_NS      VF_MS(100)
#define COLUMNS       80 /* of a terminal that doesn't tell */
#define COLUMNS_MAX   200
#define BAR_MIN       8
#define BAR_MAX       30
#define SETTLED_SHARE 0.01 /* of the work, before its end is guessed */

/* The terminal is the process's. */
static struct {
    char what[48];
    uint64_t began_ns, drawn_ns;
    _Atomic bool shown;
} state;

static int columns(void)
{
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_col == 0)
        return COLUMNS;
    return w.ws_col < COLUMNS_MAX ? w.ws_col : COLUMNS_MAX;
}

void vf_progress_clear(void)
{
    if (!atomic_exchange_explicit(&state.shown, false, memory_order_relaxed))
        return;
    static const char erase[] = "\r\033[K";
    ssize_t ignored = write(STDERR_FILENO, erase, sizeof erase - 1);
    (void)ignored;
}

static int print_bytes(char *buf, size_t n, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    for (; bytes >= 1024 && u < 4; u++)
        bytes /= 1024;
    return snprintf(buf, n, u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
}

/* "1.2 GiB of 3.9 GiB", "120 of 512 tokens". */
static void print_amount(char *buf, size_t n, enum vf_progress_unit unit, uint64_t done,
                         uint64_t total)
{
    char a[32], b[32];
    if (unit == VF_PROGRESS_BYTES) {
        print_bytes(a, sizeof a, (double)done);
        print_bytes(b, sizeof b, (double)total);
        snprintf(buf, n, "%s of %s", a, b);
        return;
    }
    snprintf(buf, n, "%llu of %llu%s", (unsigned long long)done, (unsigned long long)total,
             unit == VF_PROGRESS_TOKENS ? " tokens" : "");
}

/* "512.0 MiB/s", "31.4 tokens/s"; items come as they come. */
static void print_rate(char *buf, size_t n, enum vf_progress_unit unit, double per_s)
{
    char bytes[32];
    print_bytes(bytes, sizeof bytes, per_s);
    if (unit == VF_PROGRESS_BYTES)
        snprintf(buf, n, "%s/s", bytes);
    else
        snprintf(buf, n, "%.1f%s/s", per_s, unit == VF_PROGRESS_TOKENS ? " tokens" : "");
}

static void print_left(char *buf, size_t n, double seconds)
{
    unsigned long s = seconds < 1e6 ? (unsigned long)(seconds + 0.5) : 1000000ul;
    if (s < 60)
        snprintf(buf, n, "%lu s left", s);
    else if (s < 3600)
        snprintf(buf, n, "%lu:%02lu min left", s / 60, s % 60);
    else
        snprintf(buf, n, "%lu:%02lu h left", s / 3600, s / 60 % 60);
}

/* Appends part behind two spaces where it still fits. */
static void append(char *line, int width, const char *part)
{
    size_t n = strlen(line), need = strlen(part) + 2;
    if (*part && n + need < (size_t)width)
        snprintf(line + n, need + 1, "  %s", part);
}

/* What fits of name, percentage, time left, rate and amount, in this order of worth; the bar takes
 * what is left between name and percentage. */
static void draw(enum vf_progress_unit unit, uint64_t done, uint64_t total, double seconds)
{
    char amount[80], rate[48] = "", left[48] = "", tail[COLUMNS_MAX + 8],
                     line[2 * COLUMNS_MAX + 64];
    double share = (double)done / (double)total;
    print_amount(amount, sizeof amount, unit, done, total);
    if (share >= SETTLED_SHARE && seconds > 0) {
        print_rate(rate, sizeof rate, unit, (double)done / seconds);
        print_left(left, sizeof left, seconds / share - seconds);
    }
    int width = columns(), name = (int)strlen(state.what);
    snprintf(tail, sizeof tail, "%3.0f%%", share * 100);
    int room = width - name - 2;
    append(tail, room, left);
    append(tail, room, rate);
    append(tail, room, amount);
    int bar = width - name - (int)strlen(tail) - 5;
    bar = bar > BAR_MAX ? BAR_MAX : bar;
    char filled[BAR_MAX + 4] = "";
    if (bar >= BAR_MIN) {
        filled[0] = ' ';
        filled[1] = '[';
        for (int i = 0; i < bar; i++)
            filled[i + 2] = i < (int)(share * bar) ? '#' : '.';
        filled[bar + 2] = ']';
        filled[bar + 3] = 0;
    }
    int n = snprintf(line, sizeof line, "\r%s%s %s\033[K", state.what, filled, tail);
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)n);
    (void)ignored;
    atomic_store_explicit(&state.shown, true, memory_order_relaxed);
}

void vf_progress(const char *what, enum vf_progress_unit unit, uint64_t done, uint64_t total)
{
    if (!isatty(STDERR_FILENO) || total == 0)
        return;
    uint64_t now = vf_now_ns();
    if (strncmp(what, state.what, sizeof state.what - 1) != 0) {
        snprintf(state.what, sizeof state.what, "%s", what);
        state.began_ns = now;
        state.drawn_ns = 0;
    }
    if (done >= total) {
        vf_progress_clear();
        state.what[0] = 0;
        return;
    }
    if (now - state.began_ns < FIRST_NS || now - state.drawn_ns < PAUSE_NS)
        return;
    state.drawn_ns = now;
    draw(unit, done, total, (double)(now - state.began_ns) * 1e-9);
}
