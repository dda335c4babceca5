/* The node: initialisation, handles, values, and the two ways in which a driver fails as a whole (gone, or blocked). */
#define _GNU_SOURCE
#include "node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../played_gpu/script.h"

int gpu_ids[MAX_GPUS];
static int references;
static char generation[32];

static int system_text(const char *key, char *buffer, unsigned long size)
{
    char path[128];
    snprintf(path, sizeof path, "system/%s", key);
    return script_text(path, buffer, size);
}

/* "blocked" holds every call for as long as it stands in the script. */
static void block_while(const char *key)
{
    char text[64];
    struct timespec pause = {0, 5000000};
    while (script_text(key, text, sizeof text)) {
        nanosleep(&pause, NULL);
        script_refresh();
    }
}

int gpu_count(void)
{
    char text[16];
    int count = system_text("gpus", text, sizeof text) ? atoi(text) : 0;
    return count < MAX_GPUS ? count : MAX_GPUS;
}

static int is_listed(int gpu)
{
    char key[32], text[8];
    snprintf(key, sizeof key, "%d/lost", gpu);
    return !script_text(key, text, sizeof text);
}

unsigned enter(void)
{
    char now[32] = "", text[32];
    if (references == 0)
        return NOT_INIT;
    if (!script_refresh())
        return DRIVER_NOT_LOADED;
    block_while("system/blocked");
    if (system_text("init", text, sizeof text))
        return (unsigned)atoi(text + strlen("error:"));
    system_text("generation", now, sizeof now);
    return strcmp(now, generation) ? DRIVER_NOT_LOADED : SUCCESS; /* loaded anew under an old client */
}

unsigned enter_gpu(const void *handle, int *gpu)
{
    unsigned status = enter();
    const int *at = handle;
    if (status)
        return status;
    if (at < gpu_ids || at >= gpu_ids + MAX_GPUS)
        return INVAL;
    *gpu = (int)(at - gpu_ids);
    char key[32];
    snprintf(key, sizeof key, "%d/blocked", *gpu);
    block_while(key);
    return SUCCESS;
}

unsigned value_text(int gpu, const char *key, char *buffer, unsigned long size)
{
    char path[256];
    if (!is_listed(gpu)) /* its files in /sys are gone: of what it has, the library knows nothing more */
        return NOT_SUPPORTED;
    snprintf(path, sizeof path, "%d/%s", gpu, key);
    if (!script_text(path, buffer, size)) {
        snprintf(path, sizeof path, "*/%s", key);
        if (!script_text(path, buffer, size))
            return NOT_SUPPORTED;
    }
    return strncmp(buffer, "error:", 6) ? SUCCESS : (unsigned)atoi(buffer + 6);
}

unsigned value_number(int gpu, const char *key, u64 *value)
{
    char text[64];
    unsigned status = value_text(gpu, key, text, sizeof text);
    if (status == SUCCESS)
        *value = (u64)strtoull(text, NULL, 0);
    return status;
}

static void put_numbers(char *place, const struct field *field, char *text)
{
    char *rest = text, *item;
    for (unsigned long at = 0; at < field->count && (item = strsep(&rest, ",")); at++) {
        u64 number = strtoull(item, NULL, 0); /* of a negative one: its two's complement, as wide as the field */
        memcpy(place + at * field->bytes, &number, field->bytes < sizeof number ? field->bytes : sizeof number);
    }
}

static void put(char *out, const struct field *field, char *text)
{
    char *place = out + field->offset;
    if (field->kind == 's') {
        strncpy(place, text, field->bytes - 1);
    } else if (field->kind == 'd') {
        double number = atof(text);
        float narrow = (float)number;
        memcpy(place, field->bytes == sizeof narrow ? (void *)&narrow : (void *)&number, field->bytes);
    } else {
        put_numbers(place, field, text);
    }
}

unsigned answer(const void *handle, const char *key, const long long *numbers, int count, const struct field *fields,
                void *out, unsigned long size)
{
    char prefix[160], path[256], text[1024] = "";
    int gpu, length, found = 0;
    unsigned status = enter_gpu(handle, &gpu);
    if (status || !out)
        return status ? status : INVAL;
    length = snprintf(prefix, sizeof prefix, "%s", key);
    for (int at = 0; at < count; at++)
        length += snprintf(prefix + length, sizeof prefix - (size_t)length, "/%lld", numbers[at]);
    status = value_text(gpu, prefix, text, sizeof text); /* a status of the call, or the value of a single number */
    if (!strncmp(text, "error:", 6))
        return status;
    memset(out, 0xff, size);
    for (const struct field *field = fields; field->name; field++) {
        if (field->kind == 's')
            memset((char *)out + field->offset, 0, field->bytes);
        if (*field->name) {
            snprintf(path, sizeof path, "%s.%s", prefix, field->name);
            status = value_text(gpu, path, text, sizeof text);
        }
        if (status == SUCCESS)
            put(out, field, text);
        found |= status == SUCCESS;
    }
    return found ? SUCCESS : NOT_SUPPORTED;
}

EXPORT unsigned amdsmi_init(u64 flags)
{
    char text[32];
    (void)flags;
    if (!script_refresh())
        return DRIVER_NOT_LOADED;
    block_while("system/blocked");
    if (system_text("init", text, sizeof text))
        return (unsigned)atoi(text + strlen("error:"));
    if (references++ == 0) {
        generation[0] = 0;
        system_text("generation", generation, sizeof generation);
    }
    return SUCCESS;
}

EXPORT unsigned amdsmi_shut_down(void)
{
    if (references == 0)
        return NOT_INIT;
    references--;
    return SUCCESS;
}

/* A socket for each GPU that is there: it is its only processor. */
EXPORT unsigned amdsmi_get_socket_handles(unsigned *count, void **sockets)
{
    unsigned status = enter(), found = 0;
    if (status || !count)
        return status ? status : INVAL;
    for (int gpu = 0; gpu < gpu_count(); gpu++) {
        if (!is_listed(gpu))
            continue;
        if (sockets && found < *count)
            sockets[found] = &gpu_ids[gpu];
        found++;
    }
    *count = found;
    return SUCCESS;
}

EXPORT unsigned amdsmi_get_processor_handles(void *socket, unsigned *count, void **processors)
{
    unsigned status = enter();
    if (status || !count)
        return status ? status : INVAL;
    if (processors && *count)
        *processors = socket;
    *count = 1;
    return SUCCESS;
}
