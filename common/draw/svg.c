#include "common/draw/svg.h"

#include <math.h>
#include <stddef.h>

void vf_svg_print_escaped(FILE *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '<')
            fputs("&lt;", out);
        else if (*s == '>')
            fputs("&gt;", out);
        else if (*s == '&')
            fputs("&amp;", out);
        else if ((unsigned char)*s >= 0x20)
            fputc(*s, out);
    }
}

double vf_svg_tick_step(double least)
{
    static const double steps[] = {1, 2, 5, 10};
    double power = pow(10.0, floor(log10(least)));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i] * power >= least)
            return steps[i] * power;
    return 10.0 * power;
}
