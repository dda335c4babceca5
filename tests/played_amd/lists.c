/* What has buffers, or waits: names, processes, bad pages, the energy counter, events. */
#define _GNU_SOURCE
#include "node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "../played_gpu/script.h"

extern const unsigned long PROCESS_PID, PROCESS_VRAM, PAGE_STATUS, EVENT_HANDLE, EVENT_KIND, EVENT_TEXT;
extern const unsigned long SIZE_amdsmi_proc_info_t, SIZE_amdsmi_retired_page_record_t, SIZE_amdsmi_evt_notification_data_t;

static u64 masks[MAX_GPUS];
static int registered[MAX_GPUS];
/* How far the file of events is read: what was told before anybody listened is nobody's. */
static long events_read = -1;

EXPORT unsigned amdsmi_get_gpu_device_uuid(void *handle, unsigned *length, char *uuid)
{
    int gpu;
    unsigned status = enter_gpu(handle, &gpu);
    return status ? status : value_text(gpu, "uuid", uuid, *length);
}

EXPORT unsigned amdsmi_get_energy_count(void *handle, u64 *energy, float *step, u64 *at)
{
    int gpu;
    char text[64];
    unsigned status = enter_gpu(handle, &gpu);
    if (!status)
        status = value_number(gpu, "energy_count.energy_accumulator", energy);
    if (!status)
        status = value_text(gpu, "energy_count.counter_resolution", text, sizeof text);
    if (status)
        return status;
    *step = (float)atof(text);
    *at = (u64)time(NULL) * 1000000000ULL;
    return SUCCESS;
}

/* "PID:BYTES,PID:BYTES" */
EXPORT unsigned amdsmi_get_gpu_process_list(void *handle, unsigned *count, char *list)
{
    int gpu;
    char text[4096] = "";
    unsigned status = enter_gpu(handle, &gpu), found = 0;
    if (!status)
        status = value_text(gpu, "processes", text, sizeof text);
    if (status)
        return status;
    char *rest = text, *item;
    while (found < *count && (item = strsep(&rest, ",")) && *item) {
        char *row = list + found++ * SIZE_amdsmi_proc_info_t;
        unsigned pid = (unsigned)atoi(item);
        char *colon = strchr(item, ':');
        u64 bytes = colon ? strtoull(colon + 1, NULL, 0) : 0;
        memcpy(row + PROCESS_PID, &pid, sizeof pid);
        memcpy(row + PROCESS_VRAM, &bytes, sizeof bytes);
    }
    *count = found;
    return SUCCESS;
}

/* A digit for each page: 0 reserved, 1 pending, 2 unreservable. */
EXPORT unsigned amdsmi_get_gpu_bad_page_info(void *handle, unsigned *count, char *pages)
{
    int gpu;
    char text[4096] = "";
    unsigned status = enter_gpu(handle, &gpu);
    if (!status)
        status = value_text(gpu, "bad_pages", text, sizeof text);
    if (status)
        return status;
    unsigned held = strcmp(text, "none") ? (unsigned)strlen(text) : 0;
    for (unsigned at = 0; pages && at < held && at < *count; at++) {
        unsigned state = (unsigned)(text[at] - '0');
        memcpy(pages + at * SIZE_amdsmi_retired_page_record_t + PAGE_STATUS, &state, sizeof state);
    }
    *count = held;
    return SUCCESS;
}

static void events_path(char *path, size_t size)
{
    snprintf(path, size, "%s/events", script_folder());
}

EXPORT unsigned amdsmi_init_gpu_event_notification(void *handle)
{
    int gpu;
    char path[4096], text[32];
    struct stat file;
    unsigned status = enter_gpu(handle, &gpu);
    if (!status && value_text(gpu, "events", text, sizeof text) != NOT_SUPPORTED)
        status = (unsigned)atoi(text + strlen("error:"));
    if (status)
        return status;
    registered[gpu] = 1;
    events_path(path, sizeof path);
    if (events_read < 0)
        events_read = stat(path, &file) == 0 ? (long)file.st_size : 0;
    return SUCCESS;
}

EXPORT unsigned amdsmi_set_gpu_event_notification_mask(void *handle, u64 mask)
{
    int gpu;
    unsigned status = enter_gpu(handle, &gpu);
    if (!status)
        masks[gpu] = mask;
    return status;
}

EXPORT unsigned amdsmi_stop_gpu_event_notification(void *handle)
{
    int gpu;
    unsigned status = enter_gpu(handle, &gpu);
    if (!status)
        registered[gpu] = 0;
    return status;
}

/* The next line of the file that somebody listens for: "GPU EVENT MESSAGE". */
static int next_event(FILE *file, int *gpu, unsigned *kind, char *message)
{
    char line[512];
    while (fgets(line, sizeof line, file)) {
        events_read = ftell(file);
        if (sscanf(line, "%d %u %255[^\n]", gpu, kind, message) == 3 && *gpu >= 0 && *gpu < MAX_GPUS &&
            registered[*gpu] && masks[*gpu] >> (*kind - 1) & 1)
            return 1;
    }
    return 0;
}

/* As the real one: what is there is written, then it waits until its time is up, or until nothing more fits. */
EXPORT unsigned amdsmi_get_gpu_event_notification(int timeout_ms, unsigned *count, char *list)
{
    unsigned status = enter(), found = 0;
    struct timespec pause = {0, 5000000};
    char path[4096];
    if (status)
        return status;
    events_path(path, sizeof path);
    for (int waited_ms = 0;; waited_ms += 5) {
        FILE *file = fopen(path, "r");
        if (file && fseek(file, events_read, SEEK_SET) == 0) {
            int gpu;
            unsigned kind;
            char message[256];
            while (found < *count && next_event(file, &gpu, &kind, message)) {
                char *row = list + found++ * SIZE_amdsmi_evt_notification_data_t;
                void *handle = &gpu_ids[gpu];
                memcpy(row + EVENT_HANDLE, &handle, sizeof handle);
                memcpy(row + EVENT_KIND, &kind, sizeof kind);
                snprintf(row + EVENT_TEXT, 256, "%s", message);
            }
        }
        if (file)
            fclose(file);
        if (found == *count || waited_ms >= timeout_ms)
            break;
        nanosleep(&pause, NULL);
        script_refresh();
    }
    *count = found;
    return found ? SUCCESS : NO_DATA;
}
