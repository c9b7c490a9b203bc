/* A program of somebody else: asks a server for its model, with nothing but the installed library.
 */
#include "client/client.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    struct vf_client_options options = {.endpoint = argc > 1 ? argv[1] : "", .interrupt_fd = -1};
    struct vf_client *client;
    struct vf_client_event event;
    struct vf_err err;
    uint64_t id;
    if (vf_client_open(&options, &client, &err) || vf_client_status(client, &id, &err) ||
        vf_client_next(client, 20000, &event, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return vf_exit_status(err.code);
    }
    printf("%s\n", event.message->status_reply->model_type);
    vf_client_close(client);
    return 0;
}
