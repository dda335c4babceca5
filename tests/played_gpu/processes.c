/* Processes on a GPU: buffers in two calls, and a struct for each version of the call.
 *
 * The script has them as "PID:BYTES:GPU_INSTANCE:COMPUTE_INSTANCE,...".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node.h"

#define MAX_PROCESSES 64

static int listed(const struct device *device, const char *key, struct process *found, unsigned *count)
{
    char text[8192];
    *count = 0;
    int status = enter_device(device);
    if (!status)
        status = value_text(device, key, text, sizeof text);
    if (status)
        return status;
    char *rest = text, *item;
    while ((item = strsep(&rest, ",")) && *count < MAX_PROCESSES) {
        struct process process;
        if (sscanf(item, "%u:%llu:%u:%u", &process.pid, &process.memory, &process.gpu_instance,
                   &process.compute_instance) == 4)
            found[(*count)++] = process;
    }
    return SUCCESS;
}

static int answer(const struct device *device, const char *key, unsigned *size, struct process *buffer)
{
    struct process found[MAX_PROCESSES];
    unsigned count;
    int status = size ? listed(device, key, found, &count) : INVALID_ARGUMENT;
    if (status)
        return status;
    int fits = count == 0 || (buffer && *size >= count);
    *size = count;
    if (fits && count)
        memcpy(buffer, found, count * sizeof *found);
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

static int answer_v1(const struct device *device, const char *key, unsigned *size, struct process_v1 *buffer)
{
    struct process found[MAX_PROCESSES];
    unsigned count;
    int status = size ? listed(device, key, found, &count) : INVALID_ARGUMENT;
    if (status)
        return status;
    int fits = count == 0 || (buffer && *size >= count);
    *size = count;
    for (unsigned at = 0; fits && at < count; at++)
        buffer[at] = (struct process_v1){found[at].pid, found[at].memory};
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

#define PROCESS_CALLS(kind, key)                                                                                       \
    EXPORT int nvmlDeviceGet##kind##RunningProcesses(const struct device *device, unsigned *size,                      \
                                                     struct process_v1 *buffer)                                        \
    {                                                                                                                  \
        return answer_v1(device, key, size, buffer);                                                                   \
    }                                                                                                                  \
    EXPORT int nvmlDeviceGet##kind##RunningProcesses_v2(const struct device *device, unsigned *size,                   \
                                                        struct process *buffer)                                        \
    {                                                                                                                  \
        return answer(device, key, size, buffer);                                                                      \
    }                                                                                                                  \
    EXPORT int nvmlDeviceGet##kind##RunningProcesses_v3(const struct device *device, unsigned *size,                   \
                                                        struct process *buffer)                                        \
    {                                                                                                                  \
        return answer(device, key, size, buffer);                                                                      \
    }

PROCESS_CALLS(Compute, "processes")
PROCESS_CALLS(Graphics, "processes.graphics")
PROCESS_CALLS(MPSCompute, "processes.mps")

/* No samples: what a GPU answers on which nothing ran since it was asked last. */
EXPORT int nvmlDeviceGetProcessUtilization(const struct device *device, void *buffer, unsigned *count, u64 since)
{
    (void)buffer;
    (void)since;
    int status = count ? enter_device(device) : INVALID_ARGUMENT;
    if (status)
        return status;
    *count = 0;
    return NOT_FOUND;
}

#if DRIVER >= 535
EXPORT int nvmlDeviceGetRunningProcessDetailList(const struct device *device, struct process_list *list)
{
    struct process found[MAX_PROCESSES];
    unsigned count;
    if (!list)
        return INVALID_ARGUMENT;
    if (list->version != VERSION_OF(struct process_list, 1))
        return ARGUMENT_VERSION_MISMATCH;
    const char *keys[] = {"processes", "processes.graphics", "processes.mps"};
    if (list->mode > 2)
        return INVALID_ARGUMENT;
    int status = listed(device, keys[list->mode], found, &count);
    if (status)
        return status;
    int fits = count == 0 || (list->processes && list->count >= count);
    list->count = count;
    for (unsigned at = 0; fits && at < count; at++)
        list->processes[at] =
            (struct process_detail){found[at].pid, found[at].memory, found[at].gpu_instance, found[at].compute_instance, 0};
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}
#endif
