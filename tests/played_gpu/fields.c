/* nvmlDeviceGetFieldValues: many values in one call, each with its own status. */
#include <stdio.h>
#include <string.h>

#include "node.h"

#if DRIVER >= 575
#define FIELD_END 273
#elif DRIVER >= 550
#define FIELD_END 228
#else
#define FIELD_END 187
#endif
#define ALL_LINKS 0xffffffffu

/* Fields that say what another call says as well, so that both agree. */
static const struct {
    unsigned field;
    const char *key;
} same_as[] = {
    {1, "ecc.mode"},
    {2, "ecc.mode.pending"},
    {3, "ecc.volatile.corrected"},
    {4, "ecc.volatile.uncorrected"},
    {5, "ecc.aggregate.corrected"},
    {6, "ecc.aggregate.uncorrected"},
    {29, "retired.corrected"},
    {30, "retired.uncorrected"},
    {31, "retired.pending"},
    {82, "temperature.memory"},
    {83, "energy.mj"},
    {91, "nvlink.count"},
    {94, "pcie.replays"},
    {142, "remapped.corrected"},
    {143, "remapped.uncorrected"},
    {144, "remapped.pending"},
    {145, "remapped.failure"},
    {186, "power.usage"},
    {197, "pcie.tx_bytes"},
    {198, "pcie.rx_bytes"},
    {230, "recovery_action"},
};

/* Of one link, the scope; all links together with ALL_LINKS where summed is 1. */
static const struct {
    unsigned field;
    const char *what;
    int summed;
} of_links[] = {
    {138, "tx_kib", 1},        {139, "rx_kib", 1},     {161, "replay", 0},
    {162, "recovery", 0},      {163, "crc_flit", 0},   {164, "speed_mbps", 0},
    {165, "state", 0},         {202, "tx_bytes", 0},   {204, "rx_bytes", 0},
    {206, "malformed", 0},     {207, "overrun", 0},    {208, "receive", 0},
    {209, "receive_remote", 0}, {211, "integrity", 0},  {212, "discards", 0},
    {214, "recovery_failed", 0}, {215, "recovery", 0},  {219, "effective", 0},
    {221, "symbol", 0},
};

/* Totals over the links under a field of their own. */
static const struct {
    unsigned field;
    const char *what;
} totals[] = {{38, "crc_flit"}, {45, "crc_data"}, {52, "replay"}, {59, "recovery"}, {160, "ecc"}};

static int sum_of_links(const struct device *device, const char *what, u64 *sum)
{
    *sum = 0;
    int status = NOT_SUPPORTED;
    for (unsigned link = 0; link < MAX_LINKS; link++) {
        u64 one;
        int answer = link_number(device, link, what, &one);
        if (answer == SUCCESS) {
            *sum += one;
            status = SUCCESS;
        }
    }
    return status;
}

static int read_field(const struct device *device, unsigned field, unsigned scope, u64 *value)
{
    char key[32];
    if (field == 0 || field >= FIELD_END)
        return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "field.%u", field);
    int status = value_number(device, key, value);
    if (status != NOT_SUPPORTED)
        return status;
    for (size_t at = 0; at < COUNT(same_as); at++)
        if (same_as[at].field == field)
            return value_number(device, same_as[at].key, value);
    for (size_t at = 0; at < COUNT(totals); at++)
        if (totals[at].field == field)
            return sum_of_links(device, totals[at].what, value);
    for (size_t at = 0; at < COUNT(of_links); at++)
        if (of_links[at].field == field) {
            if (scope != ALL_LINKS)
                return link_number(device, scope, of_links[at].what, value);
            return of_links[at].summed ? sum_of_links(device, of_links[at].what, value) : INVALID_ARGUMENT;
        }
    return NOT_SUPPORTED;
}

static unsigned type_of(unsigned field)
{
    if (field >= 193 && field <= 196)
        return VALUE_SIGNED_INT;
    int small = field <= 2 || (field >= 29 && field <= 31) || field == 82 || field == 91 || field == 94 ||
                (field >= 142 && field <= 145) || (field >= 164 && field <= 167) || (field >= 185 && field <= 192) ||
                field == 230;
    return small ? VALUE_UNSIGNED_INT : VALUE_UNSIGNED_LONG_LONG;
}

EXPORT int nvmlDeviceGetFieldValues(const struct device *device, int count, struct field_value *values)
{
    char text[8];
    int status = values && count > 0 ? enter_device(device) : INVALID_ARGUMENT;
    if (!status && system_text("strict_fields", text, sizeof text) == SUCCESS)
        for (int at = 0; at < count; at++)
            if (values[at].field >= FIELD_END)
                return INVALID_ARGUMENT; /* as some drivers: the whole batch for one unknown field */
    for (int at = 0; !status && at < count; at++) {
        u64 number = 0;
        values[at].status = (unsigned)read_field(device, values[at].field, values[at].scope, &number);
        values[at].type = type_of(values[at].field);
        values[at].timestamp_us = values[at].latency_us = 0;
        /* Only the bytes of its type are written, as by the real one. */
        if (values[at].type == VALUE_UNSIGNED_LONG_LONG)
            values[at].value.unsigned_long_long = number;
        else
            values[at].value.unsigned_int = (unsigned)number;
    }
    return status;
}
