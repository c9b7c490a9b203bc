/* The commands of vflow-coordinator. Each takes the command line from its own name on (argv[0] is
 * "generate", ...) and returns the process's exit status: 0 done, 1 failed while running, 2 wrong
 * usage, 3 bad input file, 128 + n when signal n ended it.
 */
#ifndef VF_COORDINATOR_COMMANDS_H
#define VF_COORDINATOR_COMMANDS_H

int vf_generate_main(int argc, char **argv);
int vf_score_main(int argc, char **argv);
int vf_serve_main(int argc, char **argv);
int vf_plan_main(int argc, char **argv);

#endif
