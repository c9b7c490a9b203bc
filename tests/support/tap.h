/* TAP for test programs: plan first, then ok()s; values as "# " lines; at exit a check that as
 * many ran as were planned. One translation unit per program includes this.
 */
#ifndef VF_TESTS_SUPPORT_TAP_H
#define VF_TESTS_SUPPORT_TAP_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int tap_planned, tap_run, tap_failed;

static void tap_at_exit(void)
{
    if (tap_run != tap_planned) {
        printf("not ok - planned %d tests but ran %d\n", tap_planned, tap_run);
        tap_failed++;
    }
    fflush(stdout);
    if (tap_failed)
        _exit(1);
}

__attribute__((unused)) static void plan(int n)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    tap_planned = n;
    printf("1..%d\n", n);
    atexit(tap_at_exit);
}

__attribute__((unused)) static void skip_all(const char *why)
{
    printf("1..0 # SKIP %s\n", why);
    exit(77);
}

__attribute__((unused, format(printf, 2, 3))) static int ok(int pass, const char *fmt, ...)
{
    tap_run++;
    if (!pass)
        tap_failed++;
    printf("%sok %d - ", pass ? "" : "not ", tap_run);
    va_list args;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    return pass;
}

__attribute__((unused, format(printf, 1, 2))) static void note(const char *fmt, ...)
{
    printf("# ");
    va_list args;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
}

#endif
