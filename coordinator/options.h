/* What the command lines of generate, score, serve and plan share: the settings of a run
 * (common/settings) with the file and the environment that also give them, and one check.
 */
#ifndef VF_COORDINATOR_OPTIONS_H
#define VF_COORDINATOR_OPTIONS_H

#include "common/settings/settings.h"
#include "coordinator/engine/engine.h"

#define VF_RUN_OPTIONS_MAX (VF_RUN_SETTINGS_MAX + 2)

struct vf_run_options {
    Vflow__RunSettings settings;
    const char *settings_file, *config_file; /* --settings FILE; --config FILE is the same */
    bool config_is_settings;
    json_t *file; /* its strings are in settings */
};

/* Defaults; batch is the command's own (1 for generate and score, 8 for serve). config_is_settings:
 * --config FILE is another name of --settings FILE (plan has a --config of its own). */
void vf_run_options_init(struct vf_run_options *o, uint32_t batch, bool config_is_settings);
/* Writes the rows, which store into o, to opts[0..VF_RUN_OPTIONS_MAX); returns how many. A command
 * appends its own rows behind them. */
size_t vf_run_options_table(struct vf_run_options *o, struct vf_opt *opts);
/* Environment, then the settings file, then the command line: the later ones override. */
enum vf_code vf_run_options_parse(struct vf_run_options *o, const struct vf_cli *cli, int argc,
                                  char **argv, struct vf_err *err);
/* What a table can't say: a model that is needed is missing, options that contradict each other.
 * Also starts logging with the verbosity given. */
enum vf_code vf_run_options_check(const struct vf_run_options *o, bool needs_model,
                                  struct vf_err *err);
/* The engine's parameters. Borrows o's strings; scores and cancel_fd (vf_signals_open) are the
 * command's. */
struct vf_engine_params vf_run_options_engine(const struct vf_run_options *o, bool scores,
                                              int cancel_fd);
void vf_run_options_deinit(struct vf_run_options *o);

#endif
