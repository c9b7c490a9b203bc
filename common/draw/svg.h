/* What every drawing of this project shares: text that can't break the XML, and the steps of an
 * axis.
 */
#ifndef VF_COMMON_DRAW_SVG_H
#define VF_COMMON_DRAW_SVG_H

#include <stdio.h>

/* Text content of an element: markup is escaped, control characters are left out. */
void vf_svg_print_escaped(FILE *out, const char *s);
/* The smallest of 1, 2, 5 x 10^n that is at least `least` (> 0). */
double vf_svg_tick_step(double least);

#endif
