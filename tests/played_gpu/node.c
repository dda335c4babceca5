/* The node: initialisation, devices, values, and the two ways in which a driver fails as a whole (gone, or blocked). */
#define _GNU_SOURCE
#include "node.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "script.h"

struct device devices[MAX_GPUS][MAX_MIG + 1];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int references;
static char generation[32];

static void nap_ms(long ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

int system_text(const char *key, char *buffer, unsigned size)
{
    char path[128];
    snprintf(path, sizeof path, "system/%s", key);
    if (!script_text(path, buffer, size))
        return NOT_SUPPORTED;
    return strncmp(buffer, "error:", 6) ? SUCCESS : atoi(buffer + 6);
}

/* "blocked" holds every call for as long as it stands in the script, or until that time of the monotonic clock. */
static void block_while(const char *key)
{
    char until[64];
    while (script_text(key, until, sizeof until)) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (strcmp(until, "forever") && now.tv_sec + now.tv_nsec / 1e9 >= atof(until))
            return;
        nap_ms(5);
        script_refresh();
    }
}

int enter(void)
{
    char now[32] = "";
    pthread_mutex_lock(&lock);
    int ready = references > 0;
    pthread_mutex_unlock(&lock);
    if (!ready)
        return UNINITIALIZED;
    if (!script_refresh())
        return DRIVER_NOT_LOADED;
    block_while("system/blocked");
    char text[32];
    int status = system_text("init", text, sizeof text);
    if (status != SUCCESS && status != NOT_SUPPORTED)
        return status;
    system_text("generation", now, sizeof now);
    return strcmp(now, generation) ? UNKNOWN : SUCCESS; /* the driver was loaded anew under an old client */
}

int gpu_count(void)
{
    char text[16];
    if (system_text("gpus", text, sizeof text) != SUCCESS)
        return 0;
    int count = atoi(text);
    return count < MAX_GPUS ? count : MAX_GPUS;
}

static const struct device *as_device(const void *handle)
{
    const struct device *device = handle;
    if (device < &devices[0][0] || device > &devices[MAX_GPUS - 1][MAX_MIG] || device->gpu >= gpu_count())
        return NULL;
    return device;
}

int gpu_lost(int gpu)
{
    char key[32], text[32];
    snprintf(key, sizeof key, "%d/lost", gpu);
    if (!script_text(key, text, sizeof text))
        return 0;
    return strncmp(text, "error:", 6) ? GPU_IS_LOST : atoi(text + 6);
}

int enter_device(const void *handle)
{
    int status = enter();
    if (status)
        return status;
    const struct device *device = as_device(handle);
    if (!device)
        return INVALID_ARGUMENT;
    char key[32];
    snprintf(key, sizeof key, "%d/blocked", device->gpu);
    block_while(key);
    return gpu_lost(device->gpu);
}

struct device *gpu_handle(int gpu)
{
    return &devices[gpu][0];
}

static int scripted(const char *owner, const char *key, char *buffer, unsigned size)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", owner, key);
    return script_text(path, buffer, size);
}

int value_text(const struct device *device, const char *key, char *buffer, unsigned size)
{
    char owner[32];
    if (device->mig < 0)
        snprintf(owner, sizeof owner, "%d", device->gpu);
    else
        snprintf(owner, sizeof owner, "%d.mig.%d", device->gpu, device->mig);
    if (!scripted(owner, key, buffer, size) && (device->mig >= 0 || !scripted("*", key, buffer, size)))
        return NOT_SUPPORTED;
    return strncmp(buffer, "error:", 6) ? SUCCESS : atoi(buffer + 6);
}

int value_number(const struct device *device, const char *key, u64 *value)
{
    char text[64];
    int status = value_text(device, key, text, sizeof text);
    if (status == SUCCESS)
        *value = strtoull(text, NULL, 0);
    return status;
}

int link_number(const struct device *device, unsigned link, const char *what, u64 *value)
{
    u64 count = 0;
    char key[96];
    if (link >= MAX_LINKS)
        return INVALID_ARGUMENT;
    if (value_number(device, "nvlink.count", &count) != SUCCESS || link >= count)
        return NOT_SUPPORTED;
    snprintf(key, sizeof key, "nvlink.%u.%s", link, what);
    int status = value_number(device, key, value);
    if (status != NOT_SUPPORTED)
        return status;
    snprintf(key, sizeof key, "nvlink.*.%s", what);
    return value_number(device, key, value);
}

int answer_text(int status, const char *text, char *buffer, unsigned size)
{
    if (status)
        return status;
    if (!buffer)
        return INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

int answer_number(DEVICE, const char *key, unsigned *value)
{
    u64 number;
    int status = value ? enter_device(device) : INVALID_ARGUMENT;
    if (!status)
        status = value_number(device, key, &number);
    if (!status)
        *value = (unsigned)number;
    return status;
}

int answer_long(DEVICE, const char *key, u64 *value)
{
    int status = value ? enter_device(device) : INVALID_ARGUMENT;
    return status ? status : value_number(device, key, value);
}

void fill_pci(const char *text, u64 device_id, u64 subsystem_id, struct pci_info *info)
{
    memset(info, 0, sizeof *info);
    sscanf(text, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    info->device_id = (unsigned)device_id;
    info->subsystem_id = (unsigned)subsystem_id;
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", info->domain, info->bus & 0xff, info->device & 0xff);
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0", info->domain & 0xffff, info->bus & 0xff,
             info->device & 0xff);
}

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    if (!script_refresh())
        return DRIVER_NOT_LOADED;
    block_while("system/blocked");
    char text[32];
    int status = system_text("init", text, sizeof text);
    if (status != SUCCESS && status != NOT_SUPPORTED)
        return status;
    pthread_mutex_lock(&lock);
    if (references++ == 0) {
        generation[0] = 0;
        system_text("generation", generation, sizeof generation);
        for (int gpu = 0; gpu < MAX_GPUS; gpu++)
            for (int mig = -1; mig < MAX_MIG; mig++)
                devices[gpu][mig + 1] = (struct device){gpu, mig};
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

EXPORT int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT int nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT int nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    int status = references > 0 ? SUCCESS : UNINITIALIZED;
    references -= references > 0;
    pthread_mutex_unlock(&lock);
    return status;
}
