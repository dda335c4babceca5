/* The node that is played: AMD's GPUs, and what every call of libamd_smi.so does first. */
#ifndef NODE_H
#define NODE_H

typedef unsigned long long u64;

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 16

/* amdsmi_status_t. */
enum {
    SUCCESS = 0,
    INVAL = 1,
    NOT_SUPPORTED = 2,
    NOT_INIT = 32,
    DRIVER_NOT_LOADED = 34,
    NO_DATA = 40,
};

/* Of a structure: where a field lies, how long it (one of its items) is, and of which kind: n, s or d. */
struct field {
    const char *name;
    unsigned long offset, bytes;
    char kind;
    unsigned long count;
};

/* First in every call on a GPU: is there a driver, is the library initialised, must the caller hang, is the GPU there. */
unsigned enter(void);
unsigned enter_gpu(const void *handle, int *gpu);

/* The script's text of a GPU, or else of all ("*"). "error:N" is that status; no such line: NOT_SUPPORTED. */
unsigned value_text(int gpu, const char *key, char *buffer, unsigned long size);
unsigned value_number(int gpu, const char *key, u64 *value);

/* Fills a structure: "KEY/NUMBER.FIELD VALUE" each. A field without a line has all its bits set, as AMD's library says "not
 * here"; a structure without any line is NOT_SUPPORTED. */
unsigned answer(const void *handle, const char *key, const long long *numbers, int count, const struct field *fields,
                void *out, unsigned long size);

extern int gpu_ids[MAX_GPUS];
int gpu_count(void);

#endif
