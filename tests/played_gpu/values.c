/* What is one number or one text of the system or of a device. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "node.h"


/* ---- the system ---- */

#define SYSTEM_TEXT(name, key)                                                                                         \
    EXPORT int name(char *buffer, unsigned size)                                                                       \
    {                                                                                                                  \
        char text[96];                                                                                                 \
        int status = enter();                                                                                          \
        return status ? status : answer_text(system_text(key, text, sizeof text), text, buffer, size);                 \
    }

SYSTEM_TEXT(nvmlSystemGetDriverVersion, "driver_version")
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, "nvml_version")

static int cuda_version(int *version)
{
    char text[32];
    int status = version ? enter() : INVALID_ARGUMENT;
    if (!status)
        status = system_text("cuda_version", text, sizeof text);
    if (!status)
        *version = atoi(text);
    return status;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version)
{
    return cuda_version(version);
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuda_version(version);
}

EXPORT const char *nvmlErrorString(int status)
{
    static const struct {
        int status;
        const char *words;
    } known[] = {
        {SUCCESS, "Success"},
        {UNINITIALIZED, "Uninitialized"},
        {INVALID_ARGUMENT, "Invalid Argument"},
        {NOT_SUPPORTED, "Not Supported"},
        {NOT_FOUND, "Not Found"},
        {INSUFFICIENT_SIZE, "Insufficient Size"},
        {DRIVER_NOT_LOADED, "Driver Not Loaded"},
        {TIMEOUT, "Timeout"},
        {GPU_IS_LOST, "GPU is lost"},
        {18, "Driver/library version mismatch"},
        {ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
    };
    for (size_t at = 0; at < sizeof known / sizeof *known; at++)
        if (known[at].status == status)
            return known[at].words;
    return "Unknown Error";
}

/* ---- which device ---- */

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    int status = count ? enter() : INVALID_ARGUMENT;
    if (!status)
        *count = (unsigned)gpu_count();
    return status;
}

EXPORT int nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, const struct device **found)
{
    int status = found ? enter() : INVALID_ARGUMENT;
    if (status)
        return status;
    if (index >= (unsigned)gpu_count())
        return INVALID_ARGUMENT;
    *found = gpu_handle((int)index);
    return enter_device(*found);
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, const struct device **found)
{
    return nvmlDeviceGetHandleByIndex_v2(index, found);
}

static int handle_by(const char *key, const char *wanted, const struct device **found)
{
    char text[96];
    int status = wanted && found ? enter() : INVALID_ARGUMENT;
    if (status)
        return status;
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if (value_text(gpu_handle(gpu), key, text, sizeof text) == SUCCESS && !strcasecmp(text, wanted)) {
            *found = gpu_handle(gpu);
            return enter_device(*found);
        }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, const struct device **found)
{
    return handle_by("uuid", uuid, found);
}

EXPORT int nvmlDeviceGetHandleBySerial(const char *serial, const struct device **found)
{
    return handle_by("serial", serial, found);
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, const struct device **found)
{
    return handle_by("pci.bus_id", bus, found);
}

EXPORT int nvmlDeviceGetIndex(DEVICE, unsigned *index)
{
    int status = enter_device(device);
    if (status)
        return status;
    *index = (unsigned)(device->mig < 0 ? device->gpu : device->mig);
    return SUCCESS;
}

#define TEXT(name, key)                                                                                                \
    EXPORT int name(DEVICE, char *buffer, unsigned size)                                                               \
    {                                                                                                                  \
        char text[96];                                                                                                 \
        int status = enter_device(device);                                                                             \
        return status ? status : answer_text(value_text(device, key, text, sizeof text), text, buffer, size);          \
    }

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetBoardPartNumber, "part_number")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom")

EXPORT int nvmlDeviceGetPciInfo_v3(DEVICE, struct pci_info *info)
{
    char text[64];
    u64 device_id = 0, subsystem_id = 0;
    int status = info ? enter_device(device) : INVALID_ARGUMENT;
    if (!status)
        status = value_text(device, "pci.bus_id", text, sizeof text);
    if (status)
        return status;
    value_number(device, "pci.device_id", &device_id);
    value_number(device, "pci.subsystem_id", &subsystem_id);
    fill_pci(text, device_id, subsystem_id, info);
    return SUCCESS;
}

/* ---- single numbers ---- */

#define NUMBER(name, key)                                                                                              \
    EXPORT int name(DEVICE, unsigned *value)                                                                           \
    {                                                                                                                  \
        return answer_number(device, key, value);                                                                      \
    }

#define LONG(name, key)                                                                                                \
    EXPORT int name(DEVICE, u64 *value)                                                                                \
    {                                                                                                                  \
        return answer_long(device, key, value);                                                                        \
    }

#define TWO_NUMBERS(name, first_key, second_key)                                                                       \
    EXPORT int name(DEVICE, unsigned *first, unsigned *second)                                                         \
    {                                                                                                                  \
        int status = answer_number(device, first_key, first);                                                          \
        return status ? status : answer_number(device, second_key, second);                                            \
    }

NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetBrand, "brand")
NUMBER(nvmlDeviceGetFanSpeed, "fan")
NUMBER(nvmlDeviceGetPowerUsage, "power.usage")
NUMBER(nvmlDeviceGetPowerManagementMode, "power.mode")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power.limit")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power.limit.default")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power.limit.enforced")
NUMBER(nvmlDeviceGetPerformanceState, "pstate")
NUMBER(nvmlDeviceGetPowerState, "pstate")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetDisplayMode, "display")
NUMBER(nvmlDeviceGetDisplayActive, "display")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.generation.max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width.max")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie.replays")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired.pending")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "mig.max")
NUMBER(nvmlDeviceGetGpuInstanceId, "mig.gpu_instance")
NUMBER(nvmlDeviceGetComputeInstanceId, "mig.compute_instance")
NUMBER(nvmlDeviceGetMemoryBusWidth, "memory.bus_width")
NUMBER(nvmlDeviceGetNumGpuCores, "cores")
LONG(nvmlDeviceGetTotalEnergyConsumption, "energy.mj")
LONG(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle")
LONG(nvmlDeviceGetSupportedClocksThrottleReasons, "throttle.supported")
TWO_NUMBERS(nvmlDeviceGetDriverModel, "windows.driver_model", "windows.driver_model")
TWO_NUMBERS(nvmlDeviceGetEccMode, "ecc.mode", "ecc.mode.pending")
TWO_NUMBERS(nvmlDeviceGetMigMode, "mig.mode", "mig.mode.pending")
TWO_NUMBERS(nvmlDeviceGetPowerManagementLimitConstraints, "power.limit.min", "power.limit.max")
TWO_NUMBERS(nvmlDeviceGetEncoderUtilization, "utilization.encoder", "utilization.period_us")
TWO_NUMBERS(nvmlDeviceGetDecoderUtilization, "utilization.decoder", "utilization.period_us")
TWO_NUMBERS(nvmlDeviceGetCudaComputeCapability, "capability.major", "capability.minor")
#if DRIVER >= 535
LONG(nvmlDeviceGetCurrentClocksEventReasons, "throttle")
LONG(nvmlDeviceGetSupportedClocksEventReasons, "throttle.supported")
NUMBER(nvmlDeviceGetModuleId, "module")
#endif
#if DRIVER >= 550
NUMBER(nvmlDeviceGetNumaNodeId, "numa")
#endif

/* ---- numbers chosen by an enumeration ---- */

static int chosen(DEVICE, const char *const *keys, unsigned count, unsigned choice, unsigned *value)
{
    if (choice >= count || !keys[choice])
        return INVALID_ARGUMENT;
    return answer_number(device, keys[choice], value);
}

static const char *const clock_keys[] = {"clock.graphics", "clock.sm", "clock.memory", "clock.video"};
static const char *const max_clock_keys[] = {"clock.graphics.max", "clock.sm.max", "clock.memory.max", "clock.video.max"};
static const char *const app_clock_keys[] = {"clock.graphics.app", "clock.sm.app", "clock.memory.app", "clock.video.app"};
static const char *const default_clock_keys[] = {"clock.graphics.default", "clock.sm.default", "clock.memory.default",
                                                 "clock.video.default"};

#define CLOCK(name, keys)                                                                                              \
    EXPORT int name(DEVICE, unsigned type, unsigned *mhz)                                                              \
    {                                                                                                                  \
        return chosen(device, keys, COUNT(keys), type, mhz);                                                           \
    }

CLOCK(nvmlDeviceGetClockInfo, clock_keys)
CLOCK(nvmlDeviceGetMaxClockInfo, max_clock_keys)
CLOCK(nvmlDeviceGetMaxCustomerBoostClock, max_clock_keys)
CLOCK(nvmlDeviceGetApplicationsClock, app_clock_keys)
CLOCK(nvmlDeviceGetDefaultApplicationsClock, default_clock_keys)

EXPORT int nvmlDeviceGetClock(DEVICE, unsigned type, unsigned id, unsigned *mhz)
{
    const char *const *by_id[] = {clock_keys, app_clock_keys, default_clock_keys, max_clock_keys};
    return id < COUNT(by_id) ? chosen(device, by_id[id], COUNT(clock_keys), type, mhz) : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetTemperature(DEVICE, unsigned sensor, unsigned *celsius)
{
    return sensor ? INVALID_ARGUMENT : answer_number(device, "temperature.gpu", celsius);
}

EXPORT int nvmlDeviceGetTemperatureThreshold(DEVICE, unsigned which, unsigned *celsius)
{
    static const char *const keys[] = {"temperature.shutdown", "temperature.slowdown", "temperature.memory.max",
                                       "temperature.gpu.max"};
    return which < COUNT(keys) ? answer_number(device, keys[which], celsius) : NOT_SUPPORTED;
}

#if DRIVER >= 565
EXPORT int nvmlDeviceGetTemperatureV(DEVICE, struct temperature_v1 *answer)
{
    unsigned celsius;
    if (!answer)
        return INVALID_ARGUMENT;
    if (answer->version != VERSION_OF(struct temperature_v1, 1))
        return ARGUMENT_VERSION_MISMATCH;
    int status = answer->sensor ? INVALID_ARGUMENT : answer_number(device, "temperature.gpu", &celsius);
    if (!status)
        answer->temperature = (int)celsius;
    return status;
}

EXPORT int nvmlDeviceGetMarginTemperature(DEVICE, struct margin_v1 *answer)
{
    unsigned celsius;
    if (!answer)
        return INVALID_ARGUMENT;
    if (answer->version != VERSION_OF(struct margin_v1, 1))
        return ARGUMENT_VERSION_MISMATCH;
    int status = answer_number(device, "temperature.margin", &celsius);
    if (!status)
        answer->margin = (int)celsius;
    return status;
}
#endif

EXPORT int nvmlDeviceGetPcieThroughput(DEVICE, unsigned counter, unsigned *kb_per_s)
{
    static const char *const keys[] = {"pcie.tx_kb_per_s", "pcie.rx_kb_per_s"};
    return chosen(device, keys, COUNT(keys), counter, kb_per_s);
}

EXPORT int nvmlDeviceGetViolationStatus(DEVICE, unsigned policy, struct violation *answer)
{
    char key[32];
    snprintf(key, sizeof key, "violation.%u", policy);
    if (answer)
        answer->reference_ns = 0;
    return answer ? answer_long(device, key, &answer->violation_ns) : INVALID_ARGUMENT;
}

