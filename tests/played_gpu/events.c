/* Event sets. What happens stands in FOLDER/events, a line each: "GPU TYPE DATA GPU_INSTANCE COMPUTE_INSTANCE".
 *
 * A set hears of what is appended after it was registered for that GPU. The wait sleeps until the file grows.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "node.h"
#include "script.h"

struct event_set {
    u64 types[MAX_GPUS];
    long offset;
    int notify;
};

static long events_size(void)
{
    char path[4096];
    struct stat state;
    snprintf(path, sizeof path, "%s/events", script_folder());
    return stat(path, &state) == 0 ? (long)state.st_size : 0;
}

static int next_event(struct event_set *set, struct event_data *data)
{
    char path[4096], line[256];
    snprintf(path, sizeof path, "%s/events", script_folder());
    if (events_size() <= set->offset)
        return 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    int found = 0;
    fseek(file, set->offset, SEEK_SET);
    while (!found && fgets(line, sizeof line, file)) {
        int gpu;
        set->offset = ftell(file);
        found = sscanf(line, "%d %llu %llu %u %u", &gpu, &data->type, &data->data, &data->gpu_instance,
                       &data->compute_instance) == 5 &&
                gpu >= 0 && gpu < MAX_GPUS && set->types[gpu] & data->type;
        if (found)
            data->device = gpu_handle(gpu);
    }
    fclose(file);
    return found;
}

static int any_lost(const struct event_set *set)
{
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if (set->types[gpu] && gpu_lost(gpu) == GPU_IS_LOST)
            return 1;
    return 0;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* A lost GPU among the registered ones ends every wait at once, after what was there to tell. */
static int wait_for_event(struct event_set *set, struct event_data *data, unsigned timeout_ms)
{
    double until_s = now_s() + timeout_ms / 1e3;
    for (;;) {
        int status = enter();
        if (status)
            return status;
        if (next_event(set, data))
            return SUCCESS;
        if (any_lost(set))
            return GPU_IS_LOST;
        double left_s = until_s - now_s();
        if (left_s <= 0)
            return TIMEOUT;
        struct pollfd wake = {set->notify, POLLIN, 0};
        poll(&wake, 1, (int)(left_s * 1e3) + 1);
        char drained[4096];
        while (read(set->notify, drained, sizeof drained) > 0)
            ;
    }
}

EXPORT int nvmlEventSetCreate(struct event_set **set)
{
    int status = enter();
    if (status)
        return status;
    *set = calloc(1, sizeof **set);
    (*set)->notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    inotify_add_watch((*set)->notify, script_folder(), IN_MODIFY | IN_MOVED_TO | IN_CREATE);
    (*set)->offset = events_size();
    return SUCCESS;
}

EXPORT int nvmlEventSetFree(struct event_set *set)
{
    if (!set)
        return INVALID_ARGUMENT;
    close(set->notify);
    free(set);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(const struct device *device, u64 *types)
{
    int status = enter_device(device);
    return status ? status : value_number(device, "events.supported", types);
}

EXPORT int nvmlDeviceRegisterEvents(const struct device *device, u64 types, struct event_set *set)
{
    u64 supported = 0;
    int status = enter_device(device);
    if (status)
        return status;
    if (!set || device->mig >= 0)
        return INVALID_ARGUMENT;
    status = value_number(device, "events.supported", &supported);
    if (status)
        return status;
    if (types & ~supported)
        return NOT_SUPPORTED;
    set->types[device->gpu] |= types;
    return SUCCESS;
}

EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout_ms)
{
    return set && data ? wait_for_event(set, data, timeout_ms) : INVALID_ARGUMENT;
}

EXPORT int nvmlEventSetWait(struct event_set *set, struct event_data_v1 *data, unsigned timeout_ms)
{
    struct event_data whole;
    int status = set && data ? wait_for_event(set, &whole, timeout_ms) : INVALID_ARGUMENT;
    if (!status)
        *data = (struct event_data_v1){whole.device, whole.type, whole.data};
    return status;
}
