#include "bench/bench.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *samples, size_t n, double q)
{
    qsort(samples, n, sizeof *samples, compare);
    size_t at = (size_t)(q * (double)(n - 1) + 0.5);
    return samples[at];
}

double bench_median(double *samples, size_t n)
{
    qsort(samples, n, sizeof *samples, compare);
    return n % 2 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2.0;
}

struct bench_stat bench_stat_of(double *samples, size_t n)
{
    double median = bench_median(samples, n);
    return (struct bench_stat){median, samples[0], samples[n - 1]};
}
