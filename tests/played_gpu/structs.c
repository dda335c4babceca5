/* Answers that are structs, some with a version in their first word, and lists in two calls. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "node.h"

EXPORT int nvmlDeviceGetUtilizationRates(DEVICE, struct utilization *answer)
{
    int status = answer ? answer_number(device, "utilization.gpu", &answer->gpu) : INVALID_ARGUMENT;
    return status ? status : answer_number(device, "utilization.memory", &answer->memory);
}

static int memory_of(DEVICE, struct memory_v2 *memory)
{
    memory->reserved = 0;
    int status = answer_long(device, "memory.total", &memory->total);
    if (!status)
        status = answer_long(device, "memory.used", &memory->used);
    if (status)
        return status;
    value_number(device, "memory.reserved", &memory->reserved);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

/* The first version counts what the driver reserves as used. */
EXPORT int nvmlDeviceGetMemoryInfo(DEVICE, struct memory *answer)
{
    struct memory_v2 memory;
    int status = answer ? memory_of(device, &memory) : INVALID_ARGUMENT;
    if (!status)
        *answer = (struct memory){memory.total, memory.free, memory.used + memory.reserved};
    return status;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(DEVICE, struct memory_v2 *answer)
{
    if (!answer)
        return INVALID_ARGUMENT;
    if (answer->version != VERSION_OF(struct memory_v2, 2))
        return ARGUMENT_VERSION_MISMATCH;
    return memory_of(device, answer);
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(DEVICE, struct bar1 *answer)
{
    int status = answer ? answer_long(device, "bar1.total", &answer->total) : INVALID_ARGUMENT;
    if (!status)
        status = answer_long(device, "bar1.used", &answer->used);
    if (!status)
        answer->free = answer->total - answer->used;
    return status;
}

static int ecc_count(DEVICE, unsigned error, unsigned counter, const char *where, u64 *count)
{
    char key[64];
    if (error > 1 || counter > 1)
        return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "ecc.%s.%s%s", counter ? "aggregate" : "volatile", error ? "uncorrected" : "corrected", where);
    return answer_long(device, key, count);
}

EXPORT int nvmlDeviceGetTotalEccErrors(DEVICE, unsigned error, unsigned counter, u64 *count)
{
    return ecc_count(device, error, counter, "", count);
}

EXPORT int nvmlDeviceGetMemoryErrorCounter(DEVICE, unsigned error, unsigned counter, unsigned location, u64 *count)
{
    static const char *const places[] = {".l1", ".l2", ".dram", ".registers", ".texture", ".shared", ".cbu", ".sram"};
    return location < COUNT(places) ? ecc_count(device, error, counter, places[location], count) : INVALID_ARGUMENT;
}

#if DRIVER >= 550
EXPORT int nvmlDeviceGetSramEccErrorStatus(DEVICE, struct sram_status_v1 *answer)
{
    u64 exceeded;
    if (!answer)
        return INVALID_ARGUMENT;
    if (answer->version != VERSION_OF(struct sram_status_v1, 1))
        return ARGUMENT_VERSION_MISMATCH;
    int status = answer_long(device, "ecc.sram.threshold_exceeded", &exceeded);
    if (status)
        return status;
    memset(&answer->aggregate_parity, 0, sizeof *answer - offsetof(struct sram_status_v1, aggregate_parity));
    value_number(device, "ecc.volatile.uncorrected.sram", &answer->volatile_secded);
    value_number(device, "ecc.volatile.corrected.sram", &answer->volatile_corrected);
    value_number(device, "ecc.aggregate.uncorrected.sram", &answer->aggregate_secded);
    value_number(device, "ecc.aggregate.corrected.sram", &answer->aggregate_corrected);
    answer->threshold_exceeded = (unsigned)exceeded;
    return SUCCESS;
}
#endif

static int retired_pages(DEVICE, unsigned cause, unsigned *count, u64 *pages, u64 *times)
{
    u64 there;
    int status = count && cause <= 1 ? enter_device(device) : INVALID_ARGUMENT;
    if (!status)
        status = value_number(device, cause ? "retired.uncorrected" : "retired.corrected", &there);
    if (status)
        return status;
    int fits = *count >= there && (pages || !there);
    *count = (unsigned)there;
    for (u64 at = 0; fits && at < there; at++) {
        pages[at] = 0x10000 + at;
        if (times)
            times[at] = 0;
    }
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlDeviceGetRetiredPages(DEVICE, unsigned cause, unsigned *count, u64 *pages)
{
    return retired_pages(device, cause, count, pages, NULL);
}

EXPORT int nvmlDeviceGetRetiredPages_v2(DEVICE, unsigned cause, unsigned *count, u64 *pages, u64 *times)
{
    return retired_pages(device, cause, count, pages, times);
}

EXPORT int nvmlDeviceGetRemappedRows(DEVICE, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    int status = answer_number(device, "remapped.corrected", corrected);
    if (!status)
        status = answer_number(device, "remapped.uncorrected", uncorrected);
    if (!status)
        status = answer_number(device, "remapped.pending", pending);
    return status ? status : answer_number(device, "remapped.failure", failed);
}

EXPORT int nvmlDeviceGetRowRemapperHistogram(DEVICE, struct remapper_histogram *answer)
{
    int status = answer ? answer_number(device, "remapper.max", &answer->max) : INVALID_ARGUMENT;
    if (!status)
        status = answer_number(device, "remapper.high", &answer->high);
    if (!status)
        status = answer_number(device, "remapper.partial", &answer->partial);
    if (!status)
        status = answer_number(device, "remapper.low", &answer->low);
    return status ? status : answer_number(device, "remapper.none", &answer->none);
}

static int fabric_of(DEVICE, struct fabric_info *answer)
{
    unsigned state = 0;
    memset(answer, 0, sizeof *answer);
    int status = answer_number(device, "fabric.state", &state);
    answer->state = (uint8_t)state;
    return status;
}

EXPORT int nvmlDeviceGetGpuFabricInfo(DEVICE, struct fabric_info *answer)
{
    return answer ? fabric_of(device, answer) : INVALID_ARGUMENT;
}

#if DRIVER >= 545
EXPORT int nvmlDeviceGetGpuFabricInfoV(DEVICE, struct fabric_info_v2 *answer)
{
    struct fabric_info info;
    u64 health = 0, summary = 0;
    if (!answer)
        return INVALID_ARGUMENT;
    int third = DRIVER >= 575 && answer->version == VERSION_OF(struct fabric_info_v3, 3);
    if (answer->version != VERSION_OF(struct fabric_info_v2, 2) && !third)
        return ARGUMENT_VERSION_MISMATCH;
    int status = fabric_of(device, &info);
    if (status)
        return status;
    value_number(device, "fabric.health_mask", &health);
    value_number(device, "fabric.health_summary", &summary);
    memcpy(answer->cluster, info.cluster, sizeof answer->cluster);
    answer->status = info.status;
    answer->clique = info.clique;
    answer->state = info.state;
    answer->health = (uint32_t)health;
    if (third)
        ((struct fabric_info_v3 *)answer)->summary = (uint8_t)summary;
    return SUCCESS;
}
#endif

