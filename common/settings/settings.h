/* The settings of a run: what options of generate, score, serve and plan, a settings file and the
 * environment can say, what a run plans with and what its workers are told.
 *
 * Their type is the protobuf message RunSettings; one table in settings.c has a row for each of its
 * fields: name, range, words, help. Everything here walks that table, so a new setting is a field,
 * its row, and the code that uses it. A value may come from four places. Command line overrides
 * file, file overrides environment, environment overrides default: apply them in the opposite
 * order.
 *
 * A number that is 0 is left to the run (coordinator/engine/shape.h decides it). Pure; one thread.
 */
#ifndef VF_COMMON_SETTINGS_SETTINGS_H
#define VF_COMMON_SETTINGS_SETTINGS_H

#include "common/base/cli.h"
#include "common/base/json.h"

#include "vflow.pb-c.h"

#define VF_RUN_SETTINGS_MAX 32 /* rows of the table, at most */

/* The defaults, which own nothing. */
void vf_run_settings_init(Vflow__RunSettings *s);
/* Writes the table, which stores into s, to opts[0..VF_RUN_SETTINGS_MAX); returns how many rows. */
size_t vf_run_settings_options(Vflow__RunSettings *s, struct vf_opt *opts);

/* VFLOW_<NAME>, "VFLOW_EXPERT_CACHE", for every setting. VF_ERR_USAGE names the variable. Strings
 * point into the environment. */
enum vf_code vf_run_settings_from_env(Vflow__RunSettings *s, struct vf_err *err);
/* A JSON object whose keys are options' names. Numbers as numbers, sizes as numbers or "4G", words
 * and names as strings. What it can't be is VF_ERR_CORRUPT: file, field, found, allowed. Strings
 * live as long as *owner, which the caller json_decref()s; NULL on failure. */
enum vf_code vf_run_settings_from_file(Vflow__RunSettings *s, const char *path, json_t **owner,
                                       struct vf_err *err);
/* Of a received message: every word is known and every number 0 or in its range. VF_ERR_PROTOCOL
 * names the setting, what was found and what is allowed. */
enum vf_code vf_run_settings_check(const Vflow__RunSettings *s, struct vf_err *err);

/* The word of a value: "avx2". The name is the option's; both must be known. */
const char *vf_run_settings_word(const char *name, int value);

#endif
