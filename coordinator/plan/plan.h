/* `vflow-coordinator plan`: prints the memory, the placement and the expected time of a token of
 * the run that generate would start, then the bytes that each part reads and the critical path,
 * with
 * --ops also the layer program; --json gives all of it as JSON, --svg draws it. A run that would be
 * refused ends with its sentence and its status; the JSON is printed all the same, without speeds.
 * docs/MODELS.md describes the output.
 *
 * argv[0] is "plan" or the program's name; returns the process's exit status. Reads a model file
 * or only a config.json; never a weight.
 */
#ifndef VF_COORDINATOR_PLAN_PLAN_H
#define VF_COORDINATOR_PLAN_PLAN_H

int vf_plan_main(int argc, char **argv);

#endif
