/* What Split and Replace look for: a fixed string, or a regular expression in the subset of the
 * reference's dialect (Oniguruma) that means the same here (PCRE2, UTF, UCP). Constructs whose
 * meaning differs are rewritten where that is exact (\s, \w, \v, \u) and refused by name
 * otherwise. Immutable after init; each thread matches with an iterator of its own.
 */
#ifndef VF_COMMON_TOKENIZER_PATTERN_H
#define VF_COMMON_TOKENIZER_PATTERN_H

#include "common/tokenizer/json_read.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Strings of one Split, Replace or Prepend; keeps growth of a text within a known factor. */
#define VF_PATTERN_STRING_MAX 256u

struct vf_pattern {
    char *string; /* NULL: a regular expression */
    size_t n_string;
    pcre2_code *code;
};

/* From {"String": ...} or {"Regex": ...}; regexes only where allow_regex. */
enum vf_code vf_pattern_init_json(struct vf_pattern *pat, const json_t *v, bool allow_regex,
                                  const struct vf_place *p, struct vf_err *err);
enum vf_code vf_pattern_init_regex(struct vf_pattern *pat, const char *regex, size_t n,
                                   const struct vf_place *p, struct vf_err *err);
enum vf_code vf_pattern_init_string(struct vf_pattern *pat, const char *s, size_t n,
                                    const struct vf_place *p, struct vf_err *err);
void vf_pattern_deinit(struct vf_pattern *pat);

/* The matches in one subject, left to right, without overlap. */
struct vf_match_iter {
    const struct vf_pattern *pattern;
    pcre2_match_data *data;
    pcre2_match_context *context;
    const char *subject;
    size_t n, next, last_end;
    size_t begin, end; /* the match found */
};
enum vf_code vf_match_iter_init(struct vf_match_iter *it, const struct vf_pattern *pat,
                                struct vf_err *err);
void vf_match_iter_deinit(struct vf_match_iter *it);
/* Starts over in subject[0..n), valid UTF-8. */
void vf_match_iter_reset(struct vf_match_iter *it, const char *subject, size_t n);
/* *found false: no more. VF_ERR_LIMIT when the expression backtracks without end. */
enum vf_code vf_match_iter_next(struct vf_match_iter *it, bool *found, struct vf_err *err);

#endif
