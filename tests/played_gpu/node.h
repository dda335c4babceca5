/* The node that is played: its devices, and what every call does first. */
#ifndef NODE_H
#define NODE_H

#include "nvml.h"

#define DEVICE const struct device *device
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define EXPORT __attribute__((visibility("default")))
/* The driver's branch, from the build: what that branch's library does not have is left out. */
#ifndef DRIVER
#error "build with -DDRIVER=525, 550 or 575"
#endif

#define MAX_GPUS 16
#define MAX_MIG 7
#define MAX_LINKS 18

/* mig: -1 of the GPU itself. A client's handle points at one of these. */
struct device {
    int gpu, mig;
};

extern struct device devices[MAX_GPUS][MAX_MIG + 1];

/* First in every call: is there a driver, is the library initialised, must the caller hang. */
int enter(void);

/* The same of a call on a device: and is it still there. */
int enter_device(const void *handle);

struct device *gpu_handle(int gpu);
int gpu_count(void);
/* What every call on a lost GPU returns; 0: it is there. */
int gpu_lost(int gpu);

/* Values by key, of the device or else of all ("*"); link: -1 or the NVLink, whose keys are "nvlink.LINK.WHAT".
 * "error:N" in the script is that status, no such line NOT_SUPPORTED. */
int value_text(const struct device *device, const char *key, char *buffer, unsigned size);
int value_number(const struct device *device, const char *key, u64 *value);
int link_number(const struct device *device, unsigned link, const char *what, u64 *value);
int system_text(const char *key, char *buffer, unsigned size);

/* The same after enter_device: what most calls are. */
int answer_number(const struct device *device, const char *key, unsigned *value);
int answer_long(const struct device *device, const char *key, u64 *value);

/* "DOMAIN:BUS:DEVICE", hexadecimal. */
void fill_pci(const char *text, u64 device_id, u64 subsystem_id, struct pci_info *info);

/* A text answer: INSUFFICIENT_SIZE if it does not fit. */
int answer_text(int status, const char *text, char *buffer, unsigned size);

#endif
