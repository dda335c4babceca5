/* Devices within a device (MIG), and NVLinks. */
#include <stdio.h>
#include <string.h>

#include "node.h"

/* ---- MIG ---- */

EXPORT int nvmlDeviceIsMigDeviceHandle(DEVICE, unsigned *is_mig)
{
    int status = is_mig ? enter_device(device) : INVALID_ARGUMENT;
    if (!status)
        *is_mig = device->mig >= 0;
    return status;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(DEVICE, unsigned index, const struct device **found)
{
    char uuid[96];
    int status = found ? enter_device(device) : INVALID_ARGUMENT;
    if (status)
        return status;
    if (device->mig >= 0 || index >= MAX_MIG)
        return INVALID_ARGUMENT;
    const struct device *mig = device + 1 + index;
    if (value_text(mig, "uuid", uuid, sizeof uuid) != SUCCESS)
        return NOT_FOUND;
    *found = mig;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(DEVICE, const struct device **found)
{
    int status = found ? enter_device(device) : INVALID_ARGUMENT;
    if (!status)
        *found = gpu_handle(device->gpu);
    return status;
}

/* ---- NVLink ---- */

static int answer_link(DEVICE, unsigned link, const char *what, u64 *value)
{
    int status = value ? enter_device(device) : INVALID_ARGUMENT;
    return status ? status : link_number(device, link, what, value);
}

static int answer_link_number(DEVICE, unsigned link, const char *what, unsigned *value)
{
    u64 number;
    int status = value ? answer_link(device, link, what, &number) : INVALID_ARGUMENT;
    if (!status)
        *value = (unsigned)number;
    return status;
}

EXPORT int nvmlDeviceGetNvLinkState(DEVICE, unsigned link, unsigned *active)
{
    return answer_link_number(device, link, "state", active);
}

EXPORT int nvmlDeviceGetNvLinkVersion(DEVICE, unsigned link, unsigned *version)
{
    return answer_link_number(device, link, "version", version);
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(DEVICE, unsigned link, unsigned *type)
{
    return answer_link_number(device, link, "remote_type", type);
}

EXPORT int nvmlDeviceGetNvLinkCapability(DEVICE, unsigned link, unsigned capability, unsigned *has)
{
    return capability < 6 ? answer_link_number(device, link, "capability", has) : INVALID_ARGUMENT;
}

static const char *const link_errors[] = {"replay", "recovery", "crc_flit", "crc_data", "ecc"};

EXPORT int nvmlDeviceGetNvLinkErrorCounter(DEVICE, unsigned link, unsigned counter, u64 *count)
{
    return counter < COUNT(link_errors) ? answer_link(device, link, link_errors[counter], count) : INVALID_ARGUMENT;
}

/* Remote ends are switches of the same board: 12 links, 6 switches, and so on round. */
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(DEVICE, unsigned link, struct pci_info *info)
{
    u64 bus;
    char text[32];
    int status = info ? answer_link(device, link, "remote_bus", &bus) : INVALID_ARGUMENT;
    if (status)
        return status;
    snprintf(text, sizeof text, "0:%llx:0", bus);
    fill_pci(text, 0x22a310de, 0, info);
    return SUCCESS;
}
