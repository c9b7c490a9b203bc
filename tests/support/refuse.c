/* refuse ERRNO CALL[,CALL...] COMMAND [ARGS...]: runs the command with system calls answered by an
 * error. Both are numbers. */
#include "refuse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    long calls[REFUSED_MAX];
    int n = 0;
    if (argc < 4) {
        fprintf(stderr, "usage: refuse ERRNO CALL[,CALL...] COMMAND [ARGS...]\n");
        return 2;
    }
    for (char *word = strtok(argv[2], ","); word && n < REFUSED_MAX; word = strtok(NULL, ","))
        calls[n++] = atol(word);
    if (!refuse_calls(atoi(argv[1]), calls, n)) {
        perror("refuse");
        return 77;
    }
    execvp(argv[3], argv + 3);
    perror(argv[3]);
    return 126;
}
