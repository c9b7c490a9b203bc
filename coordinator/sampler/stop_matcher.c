/* One Knuth-Morris-Pratt automaton per stop string; the largest of their states is how much text
 * is held back. */
#include "coordinator/sampler/stop_matcher.h"

#include "common/base/util.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct stop {
    char *text;
    size_t n;
    uint16_t fail[VF_STOP_BYTES_MAX]; /* [i]: longest proper prefix that ends text[0..i] */
    size_t state;                     /* longest prefix of text that ends the input so far */
};

struct vf_stop_matcher {
    struct stop stops[VF_STOP_COUNT_MAX];
    size_t count;
    char *buf; /* emitted by the last call, then held back */
    size_t n_emitted, n, cap;
    bool stopped;
};

static size_t step(const struct stop *s, size_t state, char c)
{
    while (state > 0 && (state == s->n || s->text[state] != c))
        state = s->fail[state - 1];
    return s->text[state] == c ? state + 1 : 0;
}

static enum vf_code add_stop(struct vf_stop_matcher *m, const char *text, struct vf_err *err)
{
    size_t n = strlen(text);
    if (n == 0 || n > VF_STOP_BYTES_MAX)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--stop: found a text of %zu bytes, allowed are 1 to %d", n,
                          VF_STOP_BYTES_MAX);
    if (!vf_utf8_valid(text, n))
        return vf_err_set(err, VF_ERR_USAGE, "--stop: found a text that is not UTF-8");
    struct stop *s = &m->stops[m->count];
    s->text = strdup(text);
    if (!s->text)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "--stop: no memory");
    s->n = n;
    m->count++;
    for (size_t i = 1, state = 0; i < n; i++) {
        state = step(s, state, text[i]);
        s->fail[i] = (uint16_t)state;
    }
    return VF_OK;
}

enum vf_code vf_stop_matcher_create(const char *const *stops, size_t count,
                                    struct vf_stop_matcher **out, struct vf_err *err)
{
    *out = NULL;
    if (count > VF_STOP_COUNT_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "--stop: found %zu texts, at most %d are allowed",
                          count, VF_STOP_COUNT_MAX);
    struct vf_stop_matcher *m = calloc(1, sizeof(*m));
    if (!m)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "--stop: no memory");
    enum vf_code code = VF_OK;
    for (size_t i = 0; i < count && code == VF_OK; i++)
        code = add_stop(m, stops[i], err);
    if (code != VF_OK) {
        vf_stop_matcher_destroy(m);
        return code;
    }
    *out = m;
    return VF_OK;
}

void vf_stop_matcher_destroy(struct vf_stop_matcher *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->count; i++)
        free(m->stops[i].text);
    free(m->buf);
    free(m);
}

/* Drops what was emitted and adds the new text. */
static enum vf_code take_in(struct vf_stop_matcher *m, const char *text, size_t n,
                            struct vf_err *err)
{
    size_t held = m->n - m->n_emitted;
    if (held + n > m->cap) {
        size_t cap = (held + n) * 2;
        char *buf = realloc(m->buf, cap);
        if (!buf)
            return vf_err_set(err, VF_ERR_NO_MEMORY, "stop strings: no memory for %zu bytes", cap);
        m->buf = buf;
        m->cap = cap;
    }
    if (held > 0)
        memmove(m->buf, m->buf + m->n_emitted, held);
    if (n > 0)
        memcpy(m->buf + held, text, n);
    m->n = held + n;
    m->n_emitted = 0;
    return VF_OK;
}

static void emit_up_to(struct vf_stop_matcher *m, size_t end, const char **emit, size_t *n_emit)
{
    m->n_emitted = end;
    *emit = end > 0 ? m->buf : "";
    *n_emit = end;
}

/* One byte: the length of the longest stop string it completes, or 0. */
static size_t advance(struct vf_stop_matcher *m, char c)
{
    size_t completed = 0;
    for (size_t k = 0; k < m->count; k++) {
        struct stop *s = &m->stops[k];
        s->state = step(s, s->state, c);
        if (s->state == s->n && s->n > completed)
            completed = s->n;
    }
    return completed;
}

enum vf_code vf_stop_matcher_push(struct vf_stop_matcher *m, const char *text, size_t n,
                                  const char **emit, size_t *n_emit, struct vf_err *err)
{
    enum vf_code code = take_in(m, text, m->stopped ? 0 : n, err);
    if (code != VF_OK)
        return code;
    for (size_t i = m->n - (m->stopped ? 0 : n); i < m->n; i++) {
        size_t completed = advance(m, m->buf[i]);
        if (completed > 0) {
            m->stopped = true;
            m->n = i + 1 - completed;
            emit_up_to(m, m->n, emit, n_emit);
            return VF_OK;
        }
    }
    size_t held = 0;
    for (size_t k = 0; k < m->count && !m->stopped; k++)
        held = m->stops[k].state > held ? m->stops[k].state : held;
    emit_up_to(m, m->n - held, emit, n_emit);
    return VF_OK;
}

bool vf_stop_matcher_stopped(const struct vf_stop_matcher *m)
{
    return m->stopped;
}

void vf_stop_matcher_flush(struct vf_stop_matcher *m, const char **emit, size_t *n_emit)
{
    *emit = m->n > m->n_emitted ? m->buf + m->n_emitted : "";
    *n_emit = m->n - m->n_emitted;
    m->n_emitted = m->n;
}
