#include "coordinator/options.h"

#include "common/base/log.h"

#define VERBOSE_MAX 2

void vf_run_options_init(struct vf_run_options *o, uint32_t batch, bool config_is_settings)
{
    *o = (struct vf_run_options){.config_is_settings = config_is_settings};
    vf_run_settings_init(&o->settings);
    o->settings.batch = batch;
}

size_t vf_run_options_table(struct vf_run_options *o, struct vf_opt *opts)
{
    size_t n = vf_run_settings_options(&o->settings, opts);
    opts[n++] = (struct vf_opt){"settings",
                                0,
                                VF_OPT_STRING,
                                &o->settings_file,
                                "FILE",
                                "a JSON object of the options above, which override it",
                                0,
                                0,
                                NULL};
    if (o->config_is_settings)
        opts[n++] = (struct vf_opt){
            "config", 0, VF_OPT_STRING, &o->config_file, "FILE", "the same as --settings",
            0,        0, NULL};
    return n;
}

static enum vf_code find_file(const struct vf_run_options *o, const struct vf_cli *cli, int argc,
                              char **argv, const char **path, struct vf_err *err)
{
    const char *config;
    *path = NULL;
    bool named = vf_cli_find(cli, argc, argv, "settings", path);
    if (!o->config_is_settings || !vf_cli_find(cli, argc, argv, "config", &config))
        return VF_OK;
    if (named)
        return vf_err_set(err, VF_ERR_USAGE,
                          "found both --settings and --config, allowed: one settings file");
    *path = config;
    return VF_OK;
}

enum vf_code vf_run_options_parse(struct vf_run_options *o, const struct vf_cli *cli, int argc,
                                  char **argv, struct vf_err *err)
{
    const char *path;
    vf_cli_answer(cli, argc, argv);
    enum vf_code code = vf_run_settings_from_env(&o->settings, err);
    if (!code)
        code = find_file(o, cli, argc, argv, &path, err);
    if (!code && path)
        code = vf_run_settings_from_file(&o->settings, path, &o->file, err);
    if (code)
        return code;
    if (vf_cli_find(cli, argc, argv, "verbose", NULL))
        o->settings.verbose = 0; /* -v counts from here */
    return vf_cli_parse(cli, argc, argv, NULL, NULL, err);
}

enum vf_code vf_run_options_check(const struct vf_run_options *o, bool needs_model,
                                  struct vf_err *err)
{
    const Vflow__RunSettings *s = &o->settings;
    int verbose = s->verbose < VERBOSE_MAX ? s->verbose : VERBOSE_MAX;
    vf_log_init("coordinator", (enum vf_log_level)(VF_LOG_WARN + verbose));
    if (needs_model && (!s->model || !*s->model))
        return vf_err_set(err, VF_ERR_USAGE, "--model is %s: which file?",
                          s->model ? "empty" : "missing");
    if (s->expert_cache && s->experts == VFLOW__EXPERTS__EXPERTS_RESIDENT)
        return vf_err_set(err, VF_ERR_USAGE,
                          "--expert-cache is for streamed experts, --experts resident was given");
    return VF_OK;
}

struct vf_engine_params vf_run_options_engine(const struct vf_run_options *o, bool scores,
                                              int cancel_fd)
{
    return (struct vf_engine_params){
        .settings = o->settings, .scores = scores, .cancel_fd = cancel_fd};
}

void vf_run_options_deinit(struct vf_run_options *o)
{
    json_decref(o->file);
    o->file = NULL;
}
