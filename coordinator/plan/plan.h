/* `vflow-coordinator plan`: prints a model's layer program, who runs it, the bytes each step
 * reads and the expected time of a token; --json gives the same as JSON, --svg draws it.
 * docs/MODELS.md describes the output.
 *
 * argv[0] is "plan" or the program's name; returns the process's exit status. Reads a model file
 * or only a config.json; never a weight.
 */
#ifndef VF_COORDINATOR_PLAN_PLAN_H
#define VF_COORDINATOR_PLAN_PLAN_H

int vf_plan_main(int argc, char **argv);

#endif
