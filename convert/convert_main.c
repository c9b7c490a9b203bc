/* vflow-convert: a checkpoint directory or a GGUF file to a .vflow or .cflow file. */
#include "common/base/cli.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/util.h"
#include "common/experts/stripes.h"
#include "convert/convert.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM "vflow-convert"

/* Set by the handler, read between blocks: a signal handler has no other way in. */
static volatile sig_atomic_t caught_signal;

static void on_signal(int signal_number)
{
    caught_signal = signal_number;
}

static void catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < VF_ARRAY_LEN(signals); i++)
        if (!vf_signal_is_ignored(signals[i]))
            sigaction(signals[i], &action, NULL);
}

static enum vf_file_format format_by_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && strcmp(dot, ".cflow") == 0 ? VF_FORMAT_CFLOW : VF_FORMAT_VFLOW;
}

static enum vf_code split_bank(const char *model, const char *dirs, struct vf_err *err)
{
    struct vf_model_file *f;
    char *paths[VF_BANK_FILES_MAX];
    uint32_t count;
    enum vf_code code = vf_bank_stripe_paths(model, dirs, paths, &count, err);
    if (code != VF_OK)
        return vf_err_prepend(err, "--split-bank: ");
    code = vf_model_file_open(model, &f, err);
    if (code == VF_OK) {
        code = vf_bank_stripes_write(f, (const char *const *)paths, count, &caught_signal, err);
        vf_model_file_close(f);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (code == VF_OK)
            printf("%s\n", paths[i]);
        free(paths[i]);
    }
    return code;
}

int main(int argc, char **argv)
{
    static const char *const formats[] = {"vflow", "cflow", NULL};
    static const char *const quants[] = {"q4", "q8", "f16", "f32", NULL};
    static const enum vf_quant quant_values[] = {VF_QUANT_Q4, VF_QUANT_Q8, VF_QUANT_F16,
                                                 VF_QUANT_F32};
    const char *output = NULL, *input = NULL, *split = NULL;
    int format = -1, quant = -1, verbose = 0;
    bool no_tokenizer = false;
    const struct vf_opt opts[] = {
        {.name = "output",
         .short_name = 'o',
         .type = VF_OPT_STRING,
         .value = &output,
         .metavar = "FILE",
         .help = "the model file to write (required)"},
        {.name = "format",
         .type = VF_OPT_CHOICE,
         .value = &format,
         .choices = formats,
         .help = "order of the weights in the file; by default what FILE's name ends in, else "
                 "vflow"},
        {.name = "quant",
         .type = VF_OPT_CHOICE,
         .value = &quant,
         .choices = quants,
         .help = "how matrices are stored; by default q4, and from GGUF as they are there"},
        {.name = "no-tokenizer",
         .type = VF_OPT_FLAG,
         .value = &no_tokenizer,
         .help = "leave the tokenizer out: the model takes token ids only"},
        {.name = "split-bank",
         .type = VF_OPT_STRING,
         .value = &split,
         .metavar = "DIR,DIR",
         .help = "instead of converting: copy the experts of a model file into one file in each "
                 "directory, for --expert-bank"},
        {.name = "verbose",
         .short_name = 'v',
         .type = VF_OPT_COUNT,
         .value = &verbose,
         .help = "say more; twice for still more"},
    };
    const struct vf_cli cli = {
        .program = PROGRAM,
        .usage = "DIR|FILE.gguf -o FILE [options]\n"
                 "       vflow-convert MODEL --split-bank DIR,DIR",
        .summary = "Converts a checkpoint directory (config.json, *.safetensors, tokenizer.json) "
                   "or a GGUF file (llama, qwen2, qwen3, qwen3moe, olmoe; F32, F16, BF16, Q8_0, "
                   "Q4_0) to one model file.",
        .opts = opts,
        .opt_count = VF_ARRAY_LEN(opts),
        .positional_min = 1,
        .positional_max = 1,
    };
    struct vf_err err = {0};
    struct vf_convert_result result = {0};
    int count = 0;
    if (vf_fault_init("convert", &err) || vf_cli_parse(&cli, argc, argv, &input, &count, &err))
        return vf_cli_fail(PROGRAM, &err);
    vf_log_init(PROGRAM, VF_LOG_WARN + verbose);
    if (split) {
        catch_signals();
        if (output || format >= 0 || quant >= 0 || no_tokenizer)
            vf_err_set(&err, VF_ERR_USAGE,
                       "--split-bank goes without -o, --format, --quant and --no-tokenizer");
        else if (split_bank(input, split, &err) == VF_OK)
            return vf_flush_stdout(&err) ? vf_cli_fail(PROGRAM, &err) : 0;
        int status = vf_cli_fail(PROGRAM, &err);
        return err.code == VF_ERR_CANCELLED && caught_signal ? 128 + caught_signal : status;
    }
    if (!output || !*output) {
        vf_err_set(&err, VF_ERR_USAGE, "-o FILE is missing");
        return vf_cli_fail(PROGRAM, &err);
    }
    catch_signals();
    const struct vf_convert_params params = {
        .input = input,
        .output = output,
        .format = format < 0 ? format_by_name(output) : (enum vf_file_format)format,
        .quant = quant < 0 ? -1 : (int)quant_values[quant],
        .no_tokenizer = no_tokenizer,
        .cancel = &caught_signal,
    };
    if (vf_convert_run(&params, &result, &err)) {
        int status = vf_cli_fail(PROGRAM, &err);
        return err.code == VF_ERR_CANCELLED && caught_signal ? 128 + caught_signal : status;
    }
    printf("%s: %s, %s, %" PRIu64 " parameters, %" PRIu64 " bytes\n", output,
           formats[params.format], result.quant, result.params, result.file_bytes);
    return vf_flush_stdout(&err) ? vf_cli_fail(PROGRAM, &err) : 0;
}
