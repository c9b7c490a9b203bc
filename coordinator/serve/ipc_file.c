#include "coordinator/serve/ipc_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct vf_ipc_file {
    struct vf_ipc_file *next;
    dev_t dev;
    ino_t ino;
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
};

/* True when somebody accepts connections on the socket file. */
static bool socket_is_alive(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return true;
    bool alive = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ||
                 (errno != ECONNREFUSED && errno != ENOENT);
    close(fd);
    return alive;
}

enum vf_code vf_ipc_file_check(const char *path, struct vf_err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path[0] != '/')
        return vf_err_set(err, VF_ERR_USAGE, "ipc://%s: an absolute path is needed", path);
    if (strlen(path) >= sizeof address.sun_path)
        return vf_err_set(err, VF_ERR_USAGE, "ipc://%s: %zu characters, a socket's path has %zu",
                          path, strlen(path), sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? VF_OK : vf_err_errno(err, VF_ERR_IO, errno, "ipc://%s", path);
    if (!S_ISSOCK(st.st_mode))
        return vf_err_set(err, VF_ERR_USAGE, "ipc://%s exists and isn't a socket", path);
    if (socket_is_alive(&address))
        return vf_err_set(err, VF_ERR_BUSY, "ipc://%s: another server listens there", path);
    return VF_OK;
}

enum vf_code vf_ipc_file_note(const char *path, struct vf_ipc_file **list, struct vf_err *err)
{
    struct stat st;
    struct vf_ipc_file *file = calloc(1, sizeof *file);
    if (!file)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for an endpoint");
    if (lstat(path, &st) != 0) {
        free(file);
        return vf_err_errno(err, VF_ERR_IO, errno, "ipc://%s", path);
    }
    *file = (struct vf_ipc_file){.next = *list, .dev = st.st_dev, .ino = st.st_ino};
    memcpy(file->path, path, strlen(path) + 1); /* vf_ipc_file_check has measured it */
    *list = file;
    return VF_OK;
}

static bool still_there(const struct vf_ipc_file *file)
{
    struct stat st;
    return lstat(file->path, &st) == 0 && st.st_dev == file->dev && st.st_ino == file->ino;
}

enum vf_code vf_ipc_files_adopt(const struct vf_ipc_file *list, const struct vf_run_dir *rd,
                                struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (; list && !code; list = list->next)
        if (still_there(list))
            code = vf_run_dir_adopt_socket(rd, list->path, err);
    return code;
}

void vf_ipc_files_remove(struct vf_ipc_file **list)
{
    while (*list) {
        struct vf_ipc_file *file = *list;
        *list = file->next;
        if (still_there(file))
            unlink(file->path);
        free(file);
    }
}
