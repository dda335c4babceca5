/* What of NVML's binary interface is played: numbers and layouts, as its clients' bindings have them. */
#ifndef NVML_H
#define NVML_H

#include <stdint.h>

typedef unsigned long long u64;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

enum { VALUE_UNSIGNED_INT = 1, VALUE_UNSIGNED_LONG_LONG = 3, VALUE_SIGNED_INT = 5 };

/* A versioned struct says its own size and version in its first word. */
#define VERSION_OF(type, number) ((unsigned)(sizeof(type) | (number) << 24))

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct memory {
    u64 total, free, used;
};

struct memory_v2 {
    unsigned version;
    u64 total, reserved, free, used;
};

struct bar1 {
    u64 total, free, used;
};

struct utilization {
    unsigned gpu, memory;
};

struct process_v1 {
    unsigned pid;
    u64 memory;
};

/* Of _v2 and _v3 alike. */
struct process {
    unsigned pid;
    u64 memory;
    unsigned gpu_instance, compute_instance;
};

struct process_detail {
    unsigned pid;
    u64 memory;
    unsigned gpu_instance, compute_instance;
    u64 protected_memory;
};

struct process_list {
    unsigned version, mode, count;
    struct process_detail *processes;
};

struct event_data_v1 {
    void *device;
    u64 type, data;
};

struct event_data {
    void *device;
    u64 type, data;
    unsigned gpu_instance, compute_instance;
};

union value {
    double real;
    unsigned unsigned_int;
    int signed_int;
    u64 unsigned_long_long;
};

struct field_value {
    uint32_t field, scope;
    int64_t timestamp_us, latency_us;
    unsigned type, status;
    union value value;
};

struct temperature_v1 {
    unsigned version, sensor;
    int temperature;
};

struct margin_v1 {
    unsigned version;
    int margin;
};

struct remapper_histogram {
    unsigned max, high, partial, low, none;
};

struct sram_status_v1 {
    unsigned version;
    u64 aggregate_parity, aggregate_secded, aggregate_corrected;
    u64 volatile_parity, volatile_secded, volatile_corrected;
    u64 bucket_l2, bucket_sm, bucket_pcie, bucket_mcu, bucket_other;
    unsigned threshold_exceeded;
};

struct fabric_info {
    uint8_t cluster[16];
    unsigned status;
    uint32_t clique;
    uint8_t state;
};

struct fabric_info_v2 {
    unsigned version;
    uint8_t cluster[16];
    unsigned status;
    uint32_t clique;
    uint8_t state;
    uint32_t health;
};

struct fabric_info_v3 {
    struct fabric_info_v2 v2;
    uint8_t summary;
};

struct violation {
    u64 reference_ns, violation_ns;
};

#endif
