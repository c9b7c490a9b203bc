#include "common/run/generate_options.h"

#include "common/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MAX_TOKENS_DEFAULT 256
#define MAX_TOKENS_MAX     (1 << 24) /* the longest context there is */
#define TOP_K_MAX          (1u << 31)
#define TEMPERATURE_MAX    1000
#define SEED_MAX           (double)(1ull << 53)
#define PROMPT_MAX         ((size_t)64 << 20)

void vf_generate_options_init(struct vf_generate_options *o)
{
    *o = (struct vf_generate_options){
        .max_tokens = MAX_TOKENS_DEFAULT, .temperature = 0.8, .top_p = 0.95};
}

size_t vf_generate_options_table(struct vf_generate_options *o, struct vf_opt *opts)
{
    const struct vf_opt rows[VF_GENERATE_OPTION_COUNT] = {
        {"prompt", 'p', VF_OPT_STRING, &o->prompt, "TEXT", "what to continue", 0, 0, NULL},
        {"prompt-file", 0, VF_OPT_STRING, &o->prompt_file, "FILE",
         "the same from a file, or from standard input: -", 0, 0, NULL},
        {"tokens", 0, VF_OPT_STRING, &o->tokens, "1,2,3", "the same as token ids", 0, 0, NULL},
        {"no-bos", 0, VF_OPT_FLAG, &o->no_bos, NULL,
         "put no beginning-of-sequence token before the text", 0, 0, NULL},
        {"max-tokens", 'n', VF_OPT_INT, &o->max_tokens, "N",
         "stop after so many (default 256; 0: when the context is full)", 0, MAX_TOKENS_MAX, NULL},
        {"temperature", 0, VF_OPT_FLOAT, &o->temperature, "T",
         "0 takes the likeliest token (default 0.8)", 0, TEMPERATURE_MAX, NULL},
        {"top-k", 0, VF_OPT_INT, &o->top_k, "N", "only the N likeliest tokens (default 0: off)", 0,
         TOP_K_MAX, NULL},
        {"top-p", 0, VF_OPT_FLOAT, &o->top_p, "P",
         "only the likeliest tokens with this total probability (default 0.95; 0: the likeliest "
         "one, 1: off)",
         0, 1, NULL},
        {"min-p", 0, VF_OPT_FLOAT, &o->min_p, "P",
         "only tokens with this share of the likeliest one's probability (default 0: off)", 0, 1,
         NULL},
        {"seed", 0, VF_OPT_STRING, &o->seed_text, "N|random",
         "same seed, same text (default 0, which tells the same story each time; random draws one "
         "and says which)",
         0, 0, NULL},
        {"stop", 0, VF_OPT_LIST, &o->stop, "TEXT", "end before this text; may be repeated", 0, 0,
         NULL},
        {"ignore-eos", 0, VF_OPT_FLAG, &o->ignore_eos, NULL, "go on after an end-of-sequence token",
         0, 0, NULL},
        {"json", 0, VF_OPT_FLAG, &o->json, NULL, "one JSON object at the end instead of the text",
         0, 0, NULL},
    };
    memcpy(opts, rows, sizeof rows);
    return VF_GENERATE_OPTION_COUNT;
}

static enum vf_code check(const struct vf_generate_options *o, struct vf_err *err)
{
    if (!!o->prompt + !!o->prompt_file + !!o->tokens != 1)
        return vf_err_set(
            err, VF_ERR_USAGE,
            "give the prompt as one of -p TEXT, --prompt-file FILE or --tokens 1,2,3");
    if (o->stop.count > VF_STOP_STRINGS_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "--stop: given %d times, at most %d are allowed",
                          o->stop.count, VF_STOP_STRINGS_MAX);
    return VF_OK;
}

static enum vf_code draw_seed(int64_t *seed, struct vf_err *err)
{
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return vf_err_errno(err, VF_ERR_IO, errno, "--seed random: getrandom");
    *seed = (int64_t)(random >> 11); /* 53 bits: every one of them can be given */
    fprintf(stderr, "the seed drawn is %" PRId64 ": --seed %" PRId64 " gives this text again\n",
            *seed, *seed);
    return VF_OK;
}

static enum vf_code take_seed(struct vf_generate_options *o, struct vf_err *err)
{
    const struct vf_opt number = {.type = VF_OPT_INT, .value = &o->seed, .max = SEED_MAX};
    if (!o->seed_text)
        return VF_OK;
    if (strcmp(o->seed_text, "random") == 0)
        return draw_seed(&o->seed, err);
    if (vf_cli_set(&number, o->seed_text, err) == VF_OK)
        return VF_OK;
    vf_err_prepend(err, "--seed: ");
    return vf_err_append(err, ", and so is random");
}

static enum vf_code take_argument(struct vf_generate_options *o, struct vf_err *err)
{
    snprintf(o->text_name, sizeof o->text_name, "-p");
    o->text_bytes = strlen(o->prompt);
    o->text = strdup(o->prompt);
    return o->text ? VF_OK : vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the prompt");
}

static enum vf_code take_file(struct vf_generate_options *o, struct vf_err *err)
{
    bool standard_input = strcmp(o->prompt_file, "-") == 0;
    snprintf(o->text_name, sizeof o->text_name, "--prompt-file %.128s",
             standard_input ? "- (standard input)" : o->prompt_file);
    return vf_read_text(o->prompt_file, PROMPT_MAX, &o->text, &o->text_bytes, err);
}

enum vf_code vf_generate_options_read(struct vf_generate_options *o, struct vf_err *err)
{
    enum vf_code code = check(o, err);
    if (!code)
        code = take_seed(o, err);
    if (code || o->tokens)
        return code;
    if ((code = o->prompt ? take_argument(o, err) : take_file(o, err)))
        return code;
    size_t valid = vf_utf8_valid_bytes(o->text, o->text_bytes);
    if (valid == o->text_bytes)
        return VF_OK;
    return vf_err_set(err, o->prompt ? VF_ERR_USAGE : VF_ERR_CORRUPT,
                      "%s: the text is not UTF-8: found the byte 0x%02x at offset %zu",
                      o->text_name, (unsigned char)o->text[valid], valid);
}

void vf_generate_options_deinit(struct vf_generate_options *o)
{
    free(o->text);
    o->text = NULL;
}
