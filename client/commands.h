/* The commands of vflow-client. Each takes the command line from its own name on (argv[0] is
 * "generate", ...) and returns the process's exit status: 0 done, 1 failed while running, 2 wrong
 * usage, 3 bad input file, 128 + n when signal n ended it.
 */
#ifndef VF_CLIENT_COMMANDS_H
#define VF_CLIENT_COMMANDS_H

int vf_client_generate_main(int argc, char **argv);
int vf_client_score_main(int argc, char **argv);
int vf_client_status_main(int argc, char **argv);
int vf_client_cancel_main(int argc, char **argv);
int vf_client_keygen_main(int argc, char **argv);

#endif
