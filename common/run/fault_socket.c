/* zmq_socket as a fault site, beside those of common/base/fault_calls.c. */
#include "common/base/fault.h"

#include <errno.h>
#include <stddef.h>

void *__real_zmq_socket(void *context, int type);
void *__wrap_zmq_socket(void *context, int type);
void *__wrap_zmq_socket(void *context, int type)
{
    if (vf_fault_called(VF_FAULT_SOCKET))
        return NULL;
    return __real_zmq_socket(context, type);
}
