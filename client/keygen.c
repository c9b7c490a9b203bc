/* vflow-client keygen: a CURVE key pair for a client or a server. */
#include "client/commands.h"
#include "common/base/cli.h"
#include "common/base/util.h"
#include "common/run/curve_keys.h"

#include <stdio.h>
#include <string.h>

int vf_client_keygen_main(int argc, char **argv)
{
    static const char program[] = "vflow-client keygen";
    const char *out = NULL;
    struct vf_err err = {0};
    struct vf_curve_keys keys = {{0}, {0}};
    const struct vf_opt opts[] = {
        {"out", 'o', VF_OPT_STRING, &out, "NAME",
         "writes NAME.key (keep it secret) and NAME.pub; nothing is overwritten", 0, 0, NULL},
    };
    const struct vf_cli cli = {program,
                               "--out NAME",
                               "Makes a key pair for tcp connections, one for the server and one "
                               "for each client.",
                               opts,
                               VF_ARRAY_LEN(opts),
                               0,
                               0};
    enum vf_code code = vf_cli_parse(&cli, argc, argv, NULL, NULL, &err);
    if (!code && !out)
        code = vf_err_set(&err, VF_ERR_USAGE, "--out NAME is missing");
    if (!code)
        code = vf_curve_keys_generate(&keys, &err);
    if (!code)
        code = vf_curve_keys_write(&keys, out, &err);
    explicit_bzero(keys.secret_key, sizeof keys.secret_key);
    if (code)
        return vf_cli_fail(program, &err);
    printf("wrote %s.key and %s.pub, public key %s\n", out, out, keys.public_key);
    return vf_flush_stdout(&err) ? vf_cli_fail(program, &err) : 0;
}
