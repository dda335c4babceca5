/* The C recorder: the ring writer's hot half and the collective hooks, on CPython's stable ABI (3.10), without torch's
 * headers. One build serves every Python >= 3.10 and every torch. It owns the mapping of the ring file; what is written
 * rarely (definitions, heartbeat, crash texts) is written by Python through a memoryview of that mapping.
 *
 * Same methods and the same bytes as ring_writer.RingWriter, collectives_hooks, collectives_dispatch and completion:
 * read those for the reasons, and change both together (one test suite runs on both). Every function runs under the
 * GIL, which is the only lock; where a call into Python may release it, nothing cached is used afterwards.
 * A hook never leaves an exception set: it hands it to on_error, which stops the hooks for good.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <Python.h>
#include <structmember.h>

#ifndef PyBUF_WRITE /* in the stable ABI from 3.11 on; the value has always been this */
#define PyBUF_WRITE 0x200
#endif

#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* --- layout (telemetry/ring_layout.py; a test compares, see LAYOUT at the end) ------------------------------------ */
enum {
    H_EVENT_HEAD = 3072,
    ROW_BYTES = 128,
    FIRST_GROUP_ROW = 2,
    EVENT_BYTES = 64,
    R_STEP = 8,
    R_PHASE = 16,
    R_PHASE_SINCE_NS = 24,
    R_STEP_SINCE_NS = 32,
    R_LOSS = 40,
    R_GRAD_NORM = 48,
    R_LOSS_STEP = 56,
    R_LEVEL = 64,
    R_HOOK_STATE = 72,
    R_COST_NS = 80,
    R_CALLS = 88,
    R_EXIT_STATE = 96,
    R_FLAGS = 104,
    R_MICROSTEPS = 112,
    G_VERSION = 0,
    G_ENQUEUED = 8,
    G_P2P_ENQUEUED = 16,
    G_ENQUEUE_NS = 24,
    G_SIGNATURE = 32,
    G_BYTES = 40,
    G_PEER = 48,
    G_DONE_VERSION = 64,
    G_COMPLETED = 72,
    G_P2P_COMPLETED = 80,
    G_COMPLETE_NS = 88,
    G_STARTED = 96,
    G_STARTED_NS = 120,
    G_OLDEST_OPEN_NS = 104,
    G_OPEN = 112,
    RUN_DELAY_PERIOD_NS = 50000000,
    KIND_ENQUEUE = 1,
    KIND_COMPLETE = 2,
    KIND_STARTED = 3,
    KIND_PHASE = 4,
    KIND_STEP = 5,
    KIND_LEVEL = 6,
    KIND_EXIT = 9,
    KIND_BAD_LOSS = 13,
    FLAG_P2P = 1,
    FLAG_POLLED = 4,
    FLAG_FAILED = 8,
    FLAG_NO_SIZE = 16,
    STEP_HAS_LOSS = 2,
    STEP_HAS_GRAD_NORM = 4,
    STEP_PARTLY_SEEN = 16,
    LEVEL_OFF = 0,
    LEVEL_EVENTS = 2,
    OP_ALL_GATHER = 4,
    OP_RECV = 11,
    MAX_OPEN = 1024,     /* per group and sort; a power of two */
    MAX_HELD = 4096,     /* Work objects over all groups */
    MAX_HOOK_NAMES = 64, /* numbers of HookOpName */
    ROW_UNDEFINED = -2,
    ROW_BLIND = -1,
    SAMPLE_EVERY = 64,     /* own cost is measured on every 64th call */
    MAX_SAMPLE_NS = 50000, /* longer means that we were descheduled, not slow */
    ABANDONED_NS = 500000000,
};

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Of a float64: all ones where it is NaN or infinite. */
#define EXPONENT ((uint64_t)0x7FF << 52)

/* Stores that a reader in another process watches: whole words, in this order. */
#define STORE(address, value) __atomic_store_n((address), (uint64_t)(value), __ATOMIC_RELEASE)

/* ================================================================================================================== */
/* Recorder                                                                                                           */
/* ================================================================================================================== */
typedef struct {
    uint64_t ns;
    uint64_t step;
    uint64_t open; /* sequence while open, else 0 */
} OpenSlot;

typedef struct {
    uint64_t count;     /* enqueued */
    uint64_t completed; /* every number up to it is complete */
    uint64_t first;     /* no lower number is open */
    uint64_t open;      /* how many are open */
    OpenSlot *slots;    /* MAX_OPEN, by sequence; allocated at first use */
} Side;

typedef struct {
    Side side[2]; /* collectives, point-to-point */
} Group;

typedef struct Recorder {
    PyObject_HEAD
    uint8_t *base;
    uint64_t *words;
    size_t bytes;
    int fd;
    int closed;
    uint64_t head;
    uint64_t event_mask;
    uint64_t step, phase, phase_since, step_since;
    int silent;      /* level off: steps and phases are kept in the rank row, without events */
    int below;       /* the level is below events: collectives are only counted */
    int partly_seen; /* it has been so in this step */
    uint64_t delay, delay_read; /* of the main thread: see run_delay.py; when it was read */
    int delay_fd;
    uint8_t *events;
    uint64_t *rank_row;
    uint8_t *group_rows;
    Py_ssize_t rows;
    int tracks;
    Group *groups;
    struct Recorder *next_live;
} Recorder;

static Recorder *live_recorders = NULL;

static int read_run_delay(int fd, uint64_t *delay) {
    char text[64], *first = text, *second;
    ssize_t length = pread(fd, text, sizeof text - 1, 0);
    if (length <= 0) return -1;
    text[length] = 0;
    strtoull(text, &first, 10);
    if (first == text || *first != ' ') return -1;
    *delay = strtoull(first, &second, 10);
    return second == first ? -1 : 0;
}

static void forget_mapping(Recorder *self) {
    /* Same addresses, private memory: whoever still writes (hooks, views) writes nowhere. */
    if (self->base != NULL && !self->closed) {
        mmap(self->base, self->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        close(self->fd);
        uint64_t delay;
        if (self->delay_fd >= 0 && read_run_delay(self->delay_fd, &delay) == 0) close(self->delay_fd);
        self->delay_fd = -1;
        self->closed = 1;
    }
}

static void forget_all_in_child(void) {
    for (Recorder *r = live_recorders; r != NULL; r = r->next_live) forget_mapping(r);
}

static uint64_t append_event(Recorder *r, uint64_t head_word, uint64_t seq, uint64_t now, uint64_t value,
                             uint64_t step, uint64_t extra) {
    uint64_t head = ++r->head;
    uint64_t *slot = (uint64_t *)(r->events + (((head - 1) & r->event_mask) * EVENT_BYTES));
    /* End goes first and begin last: a reader copies upwards, so begin == end means that all between is whole. */
    STORE(&slot[7], 0);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    slot[0] = 0;
    slot[1] = head_word;
    slot[2] = seq;
    slot[3] = now;
    slot[4] = value;
    slot[5] = step;
    slot[6] = extra;
    STORE(&slot[7], head);
    STORE(&slot[0], head);
    STORE(&r->words[H_EVENT_HEAD / 8], head);
    return head;
}

static inline uint64_t pack_head(uint64_t kind, uint64_t op, uint64_t phase, uint64_t flags, uint64_t group,
                                 uint64_t dtype) {
    return kind | op << 8 | phase << 16 | flags << 24 | group << 32 | dtype << 48;
}

static inline uint64_t *group_row(Recorder *r, Py_ssize_t group) {
    return (uint64_t *)(r->group_rows + (size_t)group * ROW_BYTES);
}

/* Sequence of the oldest open operation, 0 if none is. */
static uint64_t oldest_open(Side *side) {
    if (side->open == 0) return 0;
    while (side->slots[side->first & (MAX_OPEN - 1)].open != side->first) side->first++;
    return side->first;
}

static void close_slot(Side *side, uint64_t seq) {
    side->slots[seq & (MAX_OPEN - 1)].open = 0;
    side->open--;
}

/* Number `seq` has been counted: an operation MAX_OPEN older that is still open is given up. */
static void make_room(Side *side, uint64_t seq) {
    uint64_t oldest;
    while ((oldest = oldest_open(side)) != 0 && seq - oldest >= MAX_OPEN) close_slot(side, oldest);
}

static uint64_t record_enqueue(Recorder *r, Py_ssize_t group, uint64_t op, uint64_t nbytes, uint64_t dtype,
                               int64_t peer, uint64_t flags, uint64_t now) {
    Group *g = &r->groups[group];
    Side *side = &g->side[flags & FLAG_P2P];
    uint64_t seq = ++side->count;
    uint64_t head = append_event(r, pack_head(KIND_ENQUEUE, op, r->phase, flags, (uint64_t)group, dtype), seq, now,
                                 nbytes, r->step, (uint64_t)(peer + 1));
    uint64_t *row = group_row(r, group);
    STORE(&row[G_VERSION / 8], 2 * head - 1);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    row[(flags & FLAG_P2P ? G_P2P_ENQUEUED : G_ENQUEUED) / 8] = seq;
    row[G_ENQUEUE_NS / 8] = now;
    row[G_SIGNATURE / 8] = op | (flags & (FLAG_P2P | FLAG_NO_SIZE)) << 8 | dtype << 16;
    row[G_BYTES / 8] = nbytes;
    row[G_PEER / 8] = (uint64_t)(peer + 1);
    STORE(&row[G_VERSION / 8], 2 * head);
    if (r->tracks) {
        if (side->slots == NULL) {
            side->slots = PyMem_Calloc(MAX_OPEN, sizeof(OpenSlot));
            if (side->slots == NULL) return seq;
        }
        if (side->open == 0)
            side->first = seq;
        else
            make_room(side, seq);
        OpenSlot *slot = &side->slots[seq & (MAX_OPEN - 1)];
        slot->ns = now;
        slot->step = r->step;
        slot->open = seq;
        side->open++;
        uint64_t open = g->side[0].open + g->side[1].open;
        if (open == 1) {
            STORE(&row[G_DONE_VERSION / 8], 2 * head - 1);
            __atomic_thread_fence(__ATOMIC_RELEASE);
            row[G_OLDEST_OPEN_NS / 8] = now;
            row[G_OPEN / 8] = 1;
            STORE(&row[G_DONE_VERSION / 8], 2 * head);
        } else {
            STORE(&row[G_OPEN / 8], open);
        }
    }
    return seq;
}

static uint64_t record_skip(Recorder *r, Py_ssize_t group, uint64_t flags) {
    Side *side = &r->groups[group].side[flags & FLAG_P2P];
    uint64_t seq = ++side->count;
    if (side->open) make_room(side, seq);
    return seq;
}

static void write_done_half(Recorder *r, Py_ssize_t group, int p2p, uint64_t now) {
    Group *g = &r->groups[group];
    Side *side = &g->side[p2p];
    Side *other = &g->side[1 - p2p];
    uint64_t oldest = oldest_open(side), other_oldest = oldest_open(other), ns = 0;
    side->completed = oldest ? oldest - 1 : side->count;
    if (oldest) ns = side->slots[oldest & (MAX_OPEN - 1)].ns;
    if (other_oldest) {
        uint64_t other_ns = other->slots[other_oldest & (MAX_OPEN - 1)].ns;
        if (ns == 0 || other_ns < ns) ns = other_ns;
    }
    uint64_t *row = group_row(r, group);
    STORE(&row[G_DONE_VERSION / 8], 2 * r->head - 1);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    row[G_COMPLETED / 8] = g->side[0].completed;
    row[G_P2P_COMPLETED / 8] = g->side[1].completed;
    row[G_COMPLETE_NS / 8] = now;
    row[G_OLDEST_OPEN_NS / 8] = ns;
    row[G_OPEN / 8] = side->open + other->open;
    STORE(&row[G_DONE_VERSION / 8], 2 * r->head);
}

static inline OpenSlot *find_open(Side *side, uint64_t seq) {
    if (side->open == 0 || seq == 0) return NULL;
    OpenSlot *slot = &side->slots[seq & (MAX_OPEN - 1)];
    return slot->open == seq ? slot : NULL;
}

/* waiting_since: when the host began to wait() for it, 0 where it did not or nobody knows. */
static void record_waited(Recorder *r, Py_ssize_t group, uint64_t seq, uint64_t enqueued_ns, uint64_t flags,
                          uint64_t waiting_since) {
    int p2p = (int)(flags & FLAG_P2P);
    Side *side = &r->groups[group].side[p2p];
    OpenSlot *slot = find_open(side, seq);
    if (slot == NULL) return;
    uint64_t now = now_ns();
    append_event(r, pack_head(KIND_COMPLETE, 0, r->phase, flags, (uint64_t)group, 0), seq, now,
                 enqueued_ns ? enqueued_ns : slot->ns, slot->step, waiting_since);
    close_slot(side, seq);
    write_done_half(r, group, p2p, now);
}

static void record_complete(Recorder *r, Py_ssize_t group, uint64_t seq, uint64_t enqueued_ns, uint64_t flags) {
    record_waited(r, group, seq, enqueued_ns, flags, 0);
}

/* --- Python methods of Recorder ----------------------------------------------------------------------------------- */
static int parse_u64(PyObject *object, uint64_t *out) {
    *out = PyLong_AsUnsignedLongLong(object);
    return *out == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

static int parse_i64(PyObject *object, int64_t *out) {
    *out = PyLong_AsLongLong(object);
    return *out == -1 && PyErr_Occurred() ? -1 : 0;
}

/* pybind and Python enums alike: anything with __index__. */
static int parse_number(PyObject *object, uint64_t *out) {
    PyObject *number = PyNumber_Index(object);
    if (number == NULL) return -1;
    int result = parse_u64(number, out);
    Py_DECREF(number);
    return result;
}

static int check_group(Recorder *r, int64_t group) {
    if (group >= 0 && group < r->rows) return 0;
    PyErr_Format(PyExc_IndexError, "group row %lld of %zd", (long long)group, r->rows);
    return -1;
}

static int check_count(Py_ssize_t given, Py_ssize_t wanted, const char *name) {
    if (given == wanted) return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, given);
    return -1;
}

static PyObject *Recorder_enqueue(Recorder *r, PyObject *const *a, Py_ssize_t n) {
    int64_t group, peer;
    uint64_t op, nbytes, dtype, flags;
    if (check_count(n, 6, "enqueue") || parse_i64(a[0], &group) || check_group(r, group) || parse_number(a[1], &op) ||
        parse_u64(a[2], &nbytes) || parse_u64(a[3], &dtype) || parse_i64(a[4], &peer) || parse_number(a[5], &flags))
        return NULL;
    return PyLong_FromUnsignedLongLong(
        record_enqueue(r, (Py_ssize_t)group, op & 0xFF, nbytes, dtype & 0xFFFF, peer, flags & 0xFF, now_ns()));
}

static PyObject *Recorder_skip(Recorder *r, PyObject *const *a, Py_ssize_t n) {
    int64_t group;
    uint64_t flags;
    if (check_count(n, 2, "skip") || parse_i64(a[0], &group) || check_group(r, group) || parse_number(a[1], &flags))
        return NULL;
    return PyLong_FromUnsignedLongLong(record_skip(r, (Py_ssize_t)group, flags));
}

static PyObject *Recorder_enqueued(Recorder *r, PyObject *const *a, Py_ssize_t n) {
    int64_t group;
    uint64_t flags = 0;
    if (n == 1 ? 0 : check_count(n, 2, "enqueued")) return NULL;
    if (parse_i64(a[0], &group) || check_group(r, group) || (n == 2 && parse_number(a[1], &flags))) return NULL;
    return PyLong_FromUnsignedLongLong(r->groups[group].side[flags & FLAG_P2P].count);
}

static PyObject *Recorder_complete(Recorder *r, PyObject *const *a, Py_ssize_t n) {
    int64_t group;
    uint64_t seq, ns, flags, since = 0;
    if ((n == 5 ? 0 : check_count(n, 4, "complete")) || parse_i64(a[0], &group) || check_group(r, group) ||
        parse_u64(a[1], &seq) || parse_u64(a[2], &ns) || parse_number(a[3], &flags) ||
        (n == 5 && parse_u64(a[4], &since)))
        return NULL;
    record_waited(r, (Py_ssize_t)group, seq, ns, flags & 0xFF, since);
    Py_RETURN_NONE;
}

static PyObject *Recorder_complete_through(Recorder *r, PyObject *const *a, Py_ssize_t n) {
    int64_t group;
    uint64_t seq, flags;
    if (check_count(n, 3, "complete_through") || parse_i64(a[0], &group) || check_group(r, group) ||
        parse_u64(a[1], &seq) || parse_number(a[2], &flags))
        return NULL;
    flags &= 0xFF;
    int p2p = (int)(flags & FLAG_P2P);
    Side *side = &r->groups[group].side[p2p];
    uint64_t now = now_ns(), oldest;
    long ended = 0;
    while ((oldest = oldest_open(side)) != 0 && oldest <= seq) {
        OpenSlot *slot = &side->slots[oldest & (MAX_OPEN - 1)];
        append_event(r, pack_head(KIND_COMPLETE, 0, r->phase, flags, (uint64_t)group, 0), oldest, now, slot->ns,
                     slot->step, 0);
        close_slot(side, oldest);
        ended++;
    }
    if (ended) write_done_half(r, (Py_ssize_t)group, p2p, now);
    return PyLong_FromLong(ended);
}

static PyObject *Recorder_started_through(Recorder *r, PyObject *const *a, Py_ssize_t n) {
    int64_t group;
    uint64_t seq;
    if (check_count(n, 2, "started_through") || parse_i64(a[0], &group) || check_group(r, group) ||
        parse_u64(a[1], &seq))
        return NULL;
    uint64_t *row = group_row(r, (Py_ssize_t)group);
    if (row[G_STARTED / 8] != seq) {
        OpenSlot *slot = find_open(&r->groups[group].side[0], seq);
        uint64_t now = now_ns();
        append_event(r, pack_head(KIND_STARTED, 0, r->phase, 0, (uint64_t)group, 0), seq, now, slot ? slot->ns : 0,
                     slot ? slot->step : r->step, 0);
        STORE(&row[G_STARTED_NS / 8], now);
        STORE(&row[G_STARTED / 8], seq);
    }
    Py_RETURN_NONE;
}

static PyObject *Recorder_track_completion(Recorder *r, PyObject *value) {
    int on = PyObject_IsTrue(value);
    if (on < 0) return NULL;
    r->tracks = on;
    Py_RETURN_NONE;
}

static PyObject *Recorder_append_event(Recorder *r, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"kind", "group", "seq", "value", "extra", NULL};
    PyObject *kind_object;
    unsigned long long group = 0, seq = 0, value = 0, extra = 0;
    uint64_t kind;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|KKKK", names, &kind_object, &group, &seq, &value, &extra) ||
        parse_number(kind_object, &kind))
        return NULL;
    append_event(r, pack_head(kind, 0, r->phase, 0, group & 0xFFFF, 0), seq, now_ns(), value, r->step, extra);
    Py_RETURN_NONE;
}

static PyObject *Recorder_open_group(Recorder *r, PyObject *value) {
    int64_t group;
    if (parse_i64(value, &group) || check_group(r, group)) return NULL;
    for (int p2p = 0; p2p < 2; p2p++) {
        Side *side = &r->groups[group].side[p2p];
        PyMem_Free(side->slots);
        memset(side, 0, sizeof *side);
    }
    Py_RETURN_NONE;
}

static uint64_t begin_row(uint64_t *row) {
    uint64_t version = row[0] | 1;
    STORE(&row[0], version);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    return version;
}

static PyObject *Recorder_set_phase(Recorder *r, PyObject *value) {
    uint64_t phase, previous = r->phase;
    if (parse_number(value, &phase)) return NULL;
    phase &= 0xFF;
    if (phase != previous) {
        uint64_t now = now_ns();
        r->phase = phase;
        if (!r->silent)
            append_event(r, pack_head(KIND_PHASE, 0, phase, 0, 0, 0), previous, now, r->phase_since, r->step, 0);
        r->phase_since = now;
        uint64_t version = begin_row(r->rank_row);
        r->rank_row[R_PHASE / 8] = phase;
        r->rank_row[R_PHASE_SINCE_NS / 8] = now;
        STORE(&r->rank_row[0], version + 1);
    }
    return PyLong_FromUnsignedLongLong(previous);
}

static int parse_float(PyObject *object, int *present, uint64_t *bits) {
    double value;
    *bits = 0;
    *present = object != Py_None;
    if (!*present) return 0;
    value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred()) return -1;
    memcpy(bits, &value, 8);
    return 0;
}

/* Same as RunDelay.since_last in run_delay.py. */
static uint64_t run_delay_since_last(Recorder *r, uint64_t now) {
    uint64_t passed = now - r->delay_read, delay;
    if (r->delay_fd < 0 || passed < RUN_DELAY_PERIOD_NS) return 0;
    if (read_run_delay(r->delay_fd, &delay) || delay < r->delay || delay - r->delay > 2 * passed) {
        r->delay_fd = -1; /* not closed: it may be another's by now */
        return 0;
    }
    uint64_t us = (delay - r->delay) / 1000 + 1;
    r->delay = delay;
    r->delay_read = now;
    return us < 0xFFFFFFFF ? us : 0xFFFFFFFF;
}

static PyObject *Recorder_end_step(Recorder *r, PyObject *const *a, Py_ssize_t n) {
    int has_loss, has_norm;
    uint64_t loss, norm, flags;
    if (check_count(n, 3, "end_step") || parse_float(a[0], &has_loss, &loss) || parse_float(a[1], &has_norm, &norm) ||
        parse_number(a[2], &flags))
        return NULL;
    flags |= (has_loss ? STEP_HAS_LOSS : 0) | (has_norm ? STEP_HAS_GRAD_NORM : 0);
    flags |= r->partly_seen ? STEP_PARTLY_SEEN : 0;
    r->partly_seen = r->below;
    flags &= 0xFF;
    uint64_t now = now_ns(), step = r->step;
    if (!r->silent) {
        uint64_t head = pack_head(KIND_STEP, 0, r->phase, flags, 0, 0) | run_delay_since_last(r, now) << 32;
        append_event(r, head, step, now, loss, r->step_since, norm);
    }
    r->step = step + 1;
    r->step_since = now;
    uint64_t *row = r->rank_row;
    uint64_t version = begin_row(row);
    row[R_STEP / 8] = step + 1;
    row[R_STEP_SINCE_NS / 8] = now;
    if (has_loss) {
        row[R_LOSS / 8] = loss;
        row[R_LOSS_STEP / 8] = step;
    }
    if (has_norm) row[R_GRAD_NORM / 8] = norm;
    row[R_FLAGS / 8] = flags;
    STORE(&row[0], version + 1);
    return PyLong_FromUnsignedLongLong(step + 1);
}

static PyObject *Recorder_add_microstep(Recorder *r, PyObject *Py_UNUSED(ignored)) {
    STORE(&r->rank_row[R_MICROSTEPS / 8], r->rank_row[R_MICROSTEPS / 8] + 1);
    Py_RETURN_NONE;
}

static PyObject *Recorder_set_loss(Recorder *r, PyObject *value) {
    int present;
    uint64_t bits;
    if (parse_float(value, &present, &bits)) return NULL;
    if (present) {
        uint64_t version = begin_row(r->rank_row);
        r->rank_row[R_LOSS / 8] = bits;
        r->rank_row[R_LOSS_STEP / 8] = r->step;
        STORE(&r->rank_row[0], version + 1);
        if (!r->silent && (bits & EXPONENT) == EXPONENT) /* NaN or infinite */
            append_event(r, pack_head(KIND_BAD_LOSS, 0, r->phase, 0, 0, 0), 0, now_ns(), bits, r->step, 0);
    }
    Py_RETURN_NONE;
}

/* Collectives are recorded again: the rows show what was only counted. The caller has appended an event. */
static void show_counts(Recorder *r, uint64_t now) {
    for (Py_ssize_t group = 0; group < r->rows; group++) {
        Side *side = r->groups[group].side;
        if (side[0].count == 0 && side[1].count == 0) continue;
        uint64_t *row = group_row(r, group);
        STORE(&row[G_VERSION / 8], 2 * r->head - 1);
        __atomic_thread_fence(__ATOMIC_RELEASE);
        row[G_ENQUEUED / 8] = side[0].count;
        row[G_P2P_ENQUEUED / 8] = side[1].count;
        STORE(&row[G_VERSION / 8], 2 * r->head);
        if (!r->tracks) continue;
        for (int p2p = 0; p2p < 2; p2p++) {
            uint64_t oldest = oldest_open(&side[p2p]);
            side[p2p].completed = oldest ? oldest - 1 : side[p2p].count;
        }
        write_done_half(r, group, 0, now);
    }
}

static PyObject *Recorder_set_level(Recorder *r, PyObject *const *a, Py_ssize_t n) {
    uint64_t level, state;
    if (check_count(n, 2, "set_level") || parse_number(a[0], &level) || parse_number(a[1], &state)) return NULL;
    uint64_t now = now_ns();
    append_event(r, pack_head(KIND_LEVEL, 0, r->phase, 0, 0, 0), 0, now, level, r->step, state);
    int below = level < LEVEL_EVENTS;
    if (r->below && !below) show_counts(r, now);
    r->silent = level == LEVEL_OFF;
    r->below = below;
    r->partly_seen |= below;
    STORE(&r->rank_row[R_LEVEL / 8], level);
    STORE(&r->rank_row[R_HOOK_STATE / 8], state);
    Py_RETURN_NONE;
}

static PyObject *Recorder_add_cost(Recorder *r, PyObject *const *a, Py_ssize_t n) {
    uint64_t ns, calls;
    if (check_count(n, 2, "add_cost") || parse_u64(a[0], &ns) || parse_u64(a[1], &calls)) return NULL;
    STORE(&r->rank_row[R_COST_NS / 8], r->rank_row[R_COST_NS / 8] + ns);
    STORE(&r->rank_row[R_CALLS / 8], r->rank_row[R_CALLS / 8] + calls);
    Py_RETURN_NONE;
}

static PyObject *Recorder_record_exit(Recorder *r, PyObject *value) {
    uint64_t state;
    if (parse_number(value, &state)) return NULL;
    STORE(&r->rank_row[R_EXIT_STATE / 8], state);
    append_event(r, pack_head(KIND_EXIT, 0, r->phase, 0, 0, 0), 0, now_ns(), state, r->step, 0);
    Py_RETURN_NONE;
}

static PyObject *Recorder_forget(Recorder *r, PyObject *Py_UNUSED(ignored)) {
    forget_mapping(r);
    Py_RETURN_NONE;
}

static PyObject *Recorder_view(Recorder *r, PyObject *Py_UNUSED(ignored)) {
    /* The addresses stay mapped until the recorder is deallocated; the Python half keeps itself, hence this, alive. */
    return PyMemoryView_FromMemory((char *)r->base, (Py_ssize_t)r->bytes, PyBUF_WRITE);
}

/* --- life of a Recorder ------------------------------------------------------------------------------------------- */
static PyObject *Recorder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fd",          "file_bytes", "progress_offset", "group_rows",
                            "events_offset", "event_slots", NULL};
    int fd;
    Py_ssize_t bytes, progress, rows, events, slots;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "innnnn", names, &fd, &bytes, &progress, &rows, &events, &slots))
        return NULL;
    if (bytes <= 0 || rows <= 0 || slots < 2 || (slots & (slots - 1)) || progress < H_EVENT_HEAD ||
        progress + (rows + FIRST_GROUP_ROW) * ROW_BYTES > bytes || events < 0 || events + slots * EVENT_BYTES > bytes ||
        (progress | events) & 7) {
        PyErr_SetString(PyExc_ValueError, "ring geometry does not fit");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Recorder *self = (Recorder *)alloc(type, 0);
    if (self == NULL) return NULL;
    self->fd = fd;
    self->bytes = (size_t)bytes;
    self->rows = rows;
    self->groups = PyMem_Calloc((size_t)rows, sizeof(Group));
    /* Populated: else the first lap of the ring pays a page fault for every 64 events, inside the training step. */
    void *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (base == MAP_FAILED || self->groups == NULL) {
        if (base != MAP_FAILED) munmap(base, (size_t)bytes);
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    self->base = base;
    self->words = base;
    self->event_mask = (uint64_t)slots - 1;
    self->events = self->base + events;
    self->rank_row = (uint64_t *)(self->base + progress);
    self->group_rows = self->base + progress + FIRST_GROUP_ROW * ROW_BYTES;
    self->phase_since = self->step_since = self->delay_read = now_ns();
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", (int)getpid());
    self->delay_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (self->delay_fd >= 0 && read_run_delay(self->delay_fd, &self->delay)) {
        close(self->delay_fd);
        self->delay_fd = -1;
    }
    self->rank_row[R_PHASE_SINCE_NS / 8] = self->phase_since;
    self->rank_row[R_STEP_SINCE_NS / 8] = self->step_since;
    STORE(&self->rank_row[0], 2);
    self->next_live = live_recorders;
    live_recorders = self;
    return (PyObject *)self;
}

static void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF((PyObject *)type);
}

static void Recorder_dealloc(Recorder *self) {
    for (Recorder **link = &live_recorders; *link != NULL; link = &(*link)->next_live)
        if (*link == self) {
            *link = self->next_live;
            break;
        }
    if (self->base != NULL) {
        forget_mapping(self);
        munmap(self->base, self->bytes);
    }
    if (self->groups != NULL)
        for (Py_ssize_t i = 0; i < self->rows; i++)
            for (int p2p = 0; p2p < 2; p2p++) PyMem_Free(self->groups[i].side[p2p].slots);
    PyMem_Free(self->groups);
    free_object((PyObject *)self);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef Recorder_methods[] = {
    {"enqueue", FAST(Recorder_enqueue), METH_FASTCALL, NULL},
    {"skip", FAST(Recorder_skip), METH_FASTCALL, NULL},
    {"enqueued", FAST(Recorder_enqueued), METH_FASTCALL, NULL},
    {"complete", FAST(Recorder_complete), METH_FASTCALL, NULL},
    {"complete_through", FAST(Recorder_complete_through), METH_FASTCALL, NULL},
    {"started_through", FAST(Recorder_started_through), METH_FASTCALL, NULL},
    {"track_completion", (PyCFunction)Recorder_track_completion, METH_O, NULL},
    {"append_event", FAST(Recorder_append_event), METH_VARARGS | METH_KEYWORDS, NULL},
    {"_open_group", (PyCFunction)Recorder_open_group, METH_O, NULL},
    {"set_phase", (PyCFunction)Recorder_set_phase, METH_O, NULL},
    {"end_step", FAST(Recorder_end_step), METH_FASTCALL, NULL},
    {"add_microstep", (PyCFunction)Recorder_add_microstep, METH_NOARGS, NULL},
    {"set_loss", (PyCFunction)Recorder_set_loss, METH_O, NULL},
    {"set_level", FAST(Recorder_set_level), METH_FASTCALL, NULL},
    {"add_cost", FAST(Recorder_add_cost), METH_FASTCALL, NULL},
    {"record_exit", (PyCFunction)Recorder_record_exit, METH_O, NULL},
    {"_forget", (PyCFunction)Recorder_forget, METH_NOARGS, NULL},
    {"_view", (PyCFunction)Recorder_view, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot Recorder_slots[] = {
    {Py_tp_doc, "Hot half of a ring writer; see ring_writer.RingWriter for what the methods mean."},
    {Py_tp_new, Recorder_new},
    {Py_tp_dealloc, Recorder_dealloc},
    {Py_tp_methods, Recorder_methods},
    {0, NULL},
};
static PyType_Spec Recorder_spec = {"whichrank.instrumentation._recorder.Recorder", sizeof(Recorder), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, Recorder_slots};
static PyTypeObject *Recorder_type;

/* ================================================================================================================== */
/* Names, and the switch that all hooks share                                                                         */
/* ================================================================================================================== */
static PyObject *s_name, *s_input_tensors, *s_output_tensors, *s_nbytes, *s_dtype, *s_root, *s_work, *s_is_cpu,
    *s_is_meta, *s_numel;

typedef struct {
    PyObject_HEAD
    char enabled; /* record, or only count */
    char stopped; /* for good, by a hook that failed */
    unsigned long long calls;
    unsigned long long sampled;    /* calls that were timed */
    unsigned long long sampled_ns; /* and what they took */
    PyObject *on_error;
    PyObject *check; /* (mark, op, peer, inputs): see input_checks.py; NULL or None where nobody asked for it */
} Switch;

static PyMemberDef Switch_members[] = {
    {"enabled", T_BOOL, offsetof(Switch, enabled), 0, NULL},
    {"stopped", T_BOOL, offsetof(Switch, stopped), 0, NULL},
    {"calls", T_ULONGLONG, offsetof(Switch, calls), 0, NULL},
    {"sampled", T_ULONGLONG, offsetof(Switch, sampled), 0, NULL},
    {"sampled_ns", T_ULONGLONG, offsetof(Switch, sampled_ns), 0, NULL},
    {"check", T_OBJECT, offsetof(Switch, check), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *Switch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *on_error;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O", &on_error)) return NULL;
    Switch *self = (Switch *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF(on_error);
    self->on_error = on_error;
    return (PyObject *)self;
}

static void Switch_dealloc(Switch *self) {
    Py_XDECREF(self->on_error);
    Py_XDECREF(self->check);
    free_object((PyObject *)self);
}

static PyType_Slot Switch_slots[] = {
    {Py_tp_new, Switch_new}, {Py_tp_dealloc, Switch_dealloc}, {Py_tp_members, Switch_members}, {0, NULL}};
static PyType_Spec Switch_spec = {"whichrank.instrumentation._recorder.HookSwitch", sizeof(Switch), 0,
                                  Py_TPFLAGS_DEFAULT, Switch_slots};
static PyTypeObject *Switch_type;

/* Own cost: one call in SAMPLE_EVERY is timed, never the first, which also defines the group. */
static inline void count_call(Switch *gate, uint64_t begin) {
    if (++gate->calls % SAMPLE_EVERY == 0) {
        uint64_t spent = now_ns() - begin;
        gate->sampled++;
        gate->sampled_ns += spent < MAX_SAMPLE_NS ? spent : MAX_SAMPLE_NS;
    }
}

/* Hand the set exception to on_error, which stops the hooks; afterwards none is set. Signals' exceptions
 * (KeyboardInterrupt) are not ours to swallow: returns -1 with it set again. */
static int report_error(Switch *gate) {
    PyObject *type, *value, *trace;
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return -1;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    gate->stopped = 1;
    PyObject *result = PyObject_CallFunctionObjArgs(gate->on_error, value ? value : Py_None, NULL);
    if (result == NULL) PyErr_Clear();
    Py_XDECREF(result);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return 0;
}

/* ================================================================================================================== */
/* Open Work objects                                                                                                  */
/* ================================================================================================================== */
typedef struct {
    PyObject *work;
    uint64_t seq;
    int32_t group;
    uint32_t flags;
    int silent;           /* it may never say that it completed; then the two below count */
    unsigned long thread; /* that issued it */
    uint64_t since;
} Held;

typedef struct {
    PyObject_HEAD
    Recorder *recorder;
    PyObject *is_completed, *wait; /* unbound methods of Work, the original ones */
    Held *held;
    Py_ssize_t count, capacity;
    unsigned long long errors;
} OpenWork;

static OpenWork *waited_on = NULL; /* whose ends the wrapped Work.wait stamps */

static int hold_work(OpenWork *self, PyObject *work, Py_ssize_t group, uint64_t seq, uint64_t flags, int silent);

/* Take entry i out; the caller owns its work. */
static Held take_held(OpenWork *self, Py_ssize_t i) {
    Held entry = self->held[i];
    self->count--;
    memmove(&self->held[i], &self->held[i + 1], (size_t)(self->count - i) * sizeof(Held));
    return entry;
}

static Py_ssize_t find_held(OpenWork *self, PyObject *work) {
    for (Py_ssize_t i = self->count - 1; i >= 0; i--)
        if (self->held[i].work == work) return i;
    return -1;
}

/* End one polled Work if it is still held. Whether it failed its own wait() tells, which returns or raises at once;
 * an abandoned one is not asked: its wait() might wait. */
static void finish_polled(OpenWork *self, const Held *polled, int completed) {
    int failed = completed < 0;
    if (completed == 1) {
        PyObject *result = PyObject_CallFunctionObjArgs(self->wait, polled->work, NULL);
        failed = result == NULL;
        if (failed) PyErr_Clear();
        Py_XDECREF(result);
    }
    Py_ssize_t i = find_held(self, polled->work);
    if (i < 0 || self->held[i].seq != polled->seq) return;
    Held entry = take_held(self, i);
    record_complete(self->recorder, entry.group, entry.seq, 0,
                    entry.flags | FLAG_POLLED | (failed ? FLAG_FAILED : 0));
    Py_DECREF(entry.work);
}

/* See completion._is_abandoned. `references`: how many of the Work's are ours. */
static int is_abandoned(const Held *entry, Py_ssize_t references) {
    if (Py_REFCNT(entry->work) > references) return 0;
    if (entry->flags & FLAG_P2P) return now_ns() - entry->since > ABANDONED_NS;
    return entry->thread == PyThread_get_thread_ident();
}

enum { ASKED_OPEN = 0, ASKED_COMPLETED = 1, ASKED_ABANDONED = 2, ASKED_FAILED = -1 };

/* The entry's work is held once by the table and once by the caller. An exception is cleared. */
static int ask_completed(OpenWork *self, const Held *entry) {
    PyObject *result = PyObject_CallFunctionObjArgs(self->is_completed, entry->work, NULL);
    int completed = result == NULL ? -1 : PyObject_IsTrue(result);
    /* A silent one completes in its own wait(), in the very thread that has just come out of it: a second wait() of a
     * receive would wait for a second message. */
    if (entry->silent && (completed == 1 || (completed == 0 && is_abandoned(entry, 2)))) completed = ASKED_ABANDONED;
    Py_XDECREF(result);
    if (completed < 0) {
        PyErr_Clear();
        self->errors++;
    }
    return completed;
}

static long poll_held(OpenWork *self) {
    Py_ssize_t n = self->count;
    long ended = 0;
    if (n == 0) return 0;
    Held *snapshot = PyMem_Malloc((size_t)n * sizeof(Held));
    if (snapshot == NULL) return 0;
    memcpy(snapshot, self->held, (size_t)n * sizeof(Held));
    for (Py_ssize_t i = 0; i < n; i++) Py_INCREF(snapshot[i].work);
    for (Py_ssize_t i = 0; i < n; i++) {
        int completed = ask_completed(self, &snapshot[i]);
        if (completed != ASKED_OPEN) {
            finish_polled(self, &snapshot[i], completed);
            ended++;
        }
        Py_DECREF(snapshot[i].work);
    }
    PyMem_Free(snapshot);
    return ended;
}

static void poll_oldest(OpenWork *self, int limit) {
    Py_ssize_t i = 0;
    while (i < self->count && limit-- > 0) {
        Held entry = self->held[i];
        Py_INCREF(entry.work);
        int completed = ask_completed(self, &entry);
        if (completed != ASKED_OPEN) finish_polled(self, &entry, completed);
        Py_DECREF(entry.work);
        if (completed == ASKED_OPEN) {
            if (!entry.silent) return;
            i++;
        }
    }
}

static int hold_work(OpenWork *self, PyObject *work, Py_ssize_t group, uint64_t seq, uint64_t flags, int silent) {
    if (self->count >= MAX_HELD) {
        poll_held(self);
        while (self->count >= MAX_HELD) {
            Held entry = take_held(self, 0);
            record_complete(self->recorder, entry.group, entry.seq, 0, entry.flags | FLAG_POLLED);
            Py_DECREF(entry.work);
        }
    }
    if (self->count == self->capacity) {
        Py_ssize_t capacity = self->capacity ? 2 * self->capacity : 64;
        Held *grown = PyMem_Realloc(self->held, (size_t)capacity * sizeof(Held));
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->held = grown;
        self->capacity = capacity;
    }
    Py_INCREF(work);
    self->held[self->count++] =
        (Held){.work = work, .seq = seq, .group = (int32_t)group, .flags = (uint32_t)flags, .silent = silent};
    if (silent) {
        self->held[self->count - 1].thread = PyThread_get_thread_ident();
        self->held[self->count - 1].since = now_ns();
    }
    return 0;
}

static void end_waited(PyObject *work, uint64_t extra_flags, uint64_t since) {
    OpenWork *self = waited_on;
    if (self == NULL) return;
    Py_ssize_t i = find_held(self, work);
    if (i < 0) return;
    Held entry = take_held(self, i);
    record_waited(self->recorder, entry.group, entry.seq, 0, entry.flags | extra_flags, since);
    Py_DECREF(entry.work);
}

/* Work.wait: what the original returns or raises, and the moments between which the host stood in it. */
static PyObject *original_wait = NULL;
static PyObject *recorded_wait(PyObject *work, PyObject *args, PyObject *kwargs) {
    PyObject *result;
    Py_ssize_t n = PyTuple_Size(args);
    uint64_t since = now_ns();
    if (n == 0 && kwargs == NULL) {
        result = PyObject_CallFunctionObjArgs(original_wait, work, NULL);
    } else {
        PyObject *all = PyTuple_New(n + 1);
        if (all == NULL) return NULL;
        Py_INCREF(work);
        PyTuple_SetItem(all, 0, work);
        for (Py_ssize_t i = 0; i < n; i++) {
            PyObject *item = PyTuple_GetItem(args, i);
            Py_INCREF(item);
            PyTuple_SetItem(all, i + 1, item);
        }
        result = PyObject_Call(original_wait, all, kwargs);
        Py_DECREF(all);
    }
    if (result != NULL) {
        end_waited(work, 0, since);
    } else if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        end_waited(work, FLAG_FAILED, since);
        PyErr_Restore(type, value, trace);
    }
    return result;
}
static PyMethodDef recorded_wait_method = {"wait", FAST(recorded_wait), METH_VARARGS | METH_KEYWORDS, NULL};

static PyObject *OpenWork_make_wait(OpenWork *self, PyObject *work_class) {
    if (!PyType_Check(work_class)) {
        PyErr_SetString(PyExc_TypeError, "make_wait takes the class Work");
        return NULL;
    }
    PyObject *wait_before = original_wait;
    OpenWork *before = waited_on;
    Py_INCREF(self->wait);
    Py_INCREF((PyObject *)self);
    original_wait = self->wait;
    waited_on = self;
    Py_XDECREF(wait_before);
    Py_XDECREF((PyObject *)before);
    return PyDescr_NewMethod((PyTypeObject *)work_class, &recorded_wait_method);
}

static PyObject *OpenWork_hold(OpenWork *self, PyObject *const *a, Py_ssize_t n) {
    int64_t group;
    uint64_t seq, flags;
    int silent = n == 5 ? PyObject_IsTrue(a[4]) : 0;
    if (silent < 0 || (n == 5 ? 0 : check_count(n, 4, "hold")) || parse_i64(a[1], &group) || check_group(self->recorder, group) ||
        parse_u64(a[2], &seq) || parse_number(a[3], &flags) ||
        hold_work(self, a[0], (Py_ssize_t)group, seq, flags & 0xFF, silent))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *OpenWork_poll(OpenWork *self, PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromLong(poll_held(self));
}

static PyObject *OpenWork_clear(OpenWork *self, PyObject *Py_UNUSED(ignored)) {
    while (self->count > 0) {
        Held entry = take_held(self, self->count - 1);
        Py_DECREF(entry.work);
    }
    Py_RETURN_NONE;
}

static Py_ssize_t OpenWork_length(OpenWork *self) { return self->count; }

static PyObject *OpenWork_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *recorder, *is_completed, *wait;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!OO", Recorder_type, &recorder, &is_completed, &wait)) return NULL;
    OpenWork *self = (OpenWork *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF(recorder);
    Py_INCREF(is_completed);
    Py_INCREF(wait);
    self->recorder = (Recorder *)recorder;
    self->is_completed = is_completed;
    self->wait = wait;
    return (PyObject *)self;
}

static void OpenWork_dealloc(OpenWork *self) {
    Py_XDECREF(OpenWork_clear(self, NULL));
    PyMem_Free(self->held);
    Py_XDECREF((PyObject *)self->recorder);
    Py_XDECREF(self->is_completed);
    Py_XDECREF(self->wait);
    free_object((PyObject *)self);
}

static PyMethodDef OpenWork_methods[] = {
    {"hold", FAST(OpenWork_hold), METH_FASTCALL, NULL},
    {"poll", (PyCFunction)OpenWork_poll, METH_NOARGS, NULL},
    {"clear", (PyCFunction)OpenWork_clear, METH_NOARGS, NULL},
    {"make_wait", (PyCFunction)OpenWork_make_wait, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef OpenWork_members[] = {{"errors", T_ULONGLONG, offsetof(OpenWork, errors), READONLY, NULL},
                                         {NULL, 0, 0, 0, NULL}};
static PyType_Slot OpenWork_slots[] = {{Py_tp_new, OpenWork_new},         {Py_tp_dealloc, OpenWork_dealloc},
                                       {Py_tp_methods, OpenWork_methods}, {Py_tp_members, OpenWork_members},
                                       {Py_mp_length, OpenWork_length},   {0, NULL}};
static PyType_Spec OpenWork_spec = {"whichrank.instrumentation._recorder.OpenWork", sizeof(OpenWork), 0,
                                    Py_TPFLAGS_DEFAULT, OpenWork_slots};
static PyTypeObject *OpenWork_type;

/* ================================================================================================================== */
/* A process group as the hooks see it                                                                                */
/* ================================================================================================================== */
typedef struct {
    unsigned long thread;
    uint64_t seq;
    uint32_t flags;
    int on_host;
    int silent;
} Issued;

enum { MAX_ISSUED = 64 };

typedef struct {
    PyObject_HEAD
    Recorder *recorder;
    OpenWork *open;
    Switch *gate;
    PyObject *dtypes; /* dict: torch.dtype -> code */
    PyObject *define; /* () -> (row, members, on_cpu, cpu_on_host), or None while the members are not known */
    PyObject *note_site; /* (mark): which line of the user's code issues it; see call_site_ring.py */
    int64_t row;
    int completes;
    int on_cpu;
    int cpu_on_host;
    int64_t *members;
    Py_ssize_t size;
    Issued issued[MAX_ISSUED]; /* between pre and post hook */
    int issued_count;
} HookGroup;

static PyObject *HookGroup_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *recorder, *open, *gate, *dtypes, *define, *note_site;
    int completes;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!O!O!O!OOp", Recorder_type, &recorder, OpenWork_type, &open, Switch_type, &gate,
                          &PyDict_Type, &dtypes, &define, &note_site, &completes))
        return NULL;
    HookGroup *self = (HookGroup *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF(recorder);
    Py_INCREF(open);
    Py_INCREF(gate);
    Py_INCREF(dtypes);
    Py_INCREF(define);
    Py_INCREF(note_site);
    self->recorder = (Recorder *)recorder;
    self->open = (OpenWork *)open;
    self->gate = (Switch *)gate;
    self->dtypes = dtypes;
    self->define = define;
    self->note_site = note_site;
    self->row = ROW_UNDEFINED;
    self->completes = completes;
    return (PyObject *)self;
}

static void HookGroup_dealloc(HookGroup *self) {
    Py_XDECREF((PyObject *)self->recorder);
    Py_XDECREF((PyObject *)self->open);
    Py_XDECREF((PyObject *)self->gate);
    Py_XDECREF(self->dtypes);
    Py_XDECREF(self->define);
    Py_XDECREF(self->note_site);
    PyMem_Free(self->members);
    free_object((PyObject *)self);
}

/* ring_layout's call_mark. */
static PyObject *make_mark(HookGroup *self, uint64_t seq, uint64_t flags) {
    return PyLong_FromUnsignedLongLong((seq & 0xFFFFFFFFu) << 31 | (uint64_t)self->row << 15 |
                                       (flags & FLAG_P2P) << 14);
}

static int note_site(HookGroup *self, uint64_t seq, uint64_t flags) {
    PyObject *mark = make_mark(self, seq, flags);
    PyObject *done = mark != NULL ? PyObject_CallFunctionObjArgs(self->note_site, mark, NULL) : NULL;
    Py_XDECREF(mark);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* inputs: as torch has them; NULL: it has none. */
static int check_inputs(HookGroup *self, uint64_t seq, uint64_t flags, int op, int64_t peer, PyObject *inputs) {
    PyObject *check = self->gate->check;
    if (check == NULL || check == Py_None || inputs == NULL) return 0;
    Py_INCREF(check); /* another thread may take it away meanwhile */
    PyObject *mark = make_mark(self, seq, flags);
    PyObject *done = mark != NULL ? PyObject_CallFunction(check, "OiLO", mark, op, (long long)peer, inputs) : NULL;
    Py_DECREF(check);
    Py_XDECREF(mark);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int define_group(HookGroup *self) {
    PyObject *answer = PyObject_CallFunctionObjArgs(self->define, NULL);
    if (answer == NULL) return -1;
    if (answer == Py_None) {
        Py_DECREF(answer);
        return 0;
    }
    long long row;
    PyObject *members;
    int on_cpu, cpu_on_host;
    if (!PyArg_ParseTuple(answer, "LO!pp", &row, &PyTuple_Type, &members, &on_cpu, &cpu_on_host)) {
        Py_DECREF(answer);
        return -1;
    }
    Py_ssize_t size = PyTuple_Size(members);
    int64_t *ranks = PyMem_Calloc((size_t)size + 1, sizeof(int64_t));
    int failed = ranks == NULL;
    for (Py_ssize_t i = 0; i < size && !failed; i++) failed = parse_i64(PyTuple_GetItem(members, i), &ranks[i]);
    Py_DECREF(answer);
    if (failed || row >= self->recorder->rows) {
        PyMem_Free(ranks);
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "group row out of range");
        return -1;
    }
    PyMem_Free(self->members);
    self->members = ranks;
    self->size = size;
    self->on_cpu = on_cpu;
    self->cpu_on_host = cpu_on_host;
    self->row = row < 0 ? ROW_BLIND : row;
    return 0;
}

static PyType_Slot HookGroup_slots[] = {{Py_tp_new, HookGroup_new}, {Py_tp_dealloc, HookGroup_dealloc}, {0, NULL}};
static PyType_Spec HookGroup_spec = {"whichrank.instrumentation._recorder.HookGroup", sizeof(HookGroup), 0,
                                     Py_TPFLAGS_DEFAULT, HookGroup_slots};
static PyTypeObject *HookGroup_type;

/* --- sizes -------------------------------------------------------------------------------------------------------- */
static int read_i64(PyObject *object, PyObject *name, int64_t *out) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL) return -1;
    int result = parse_i64(value, out);
    Py_DECREF(value);
    return result;
}

static int read_bool(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL) return -1;
    int result = PyObject_IsTrue(value);
    Py_DECREF(value);
    return result;
}

typedef struct {
    uint64_t nbytes, dtype, flags;
    PyObject *first; /* borrowed from the list measured, NULL if empty */
} Sizes;

static int measure_tensor(PyObject *tensor, PyObject *dtypes, Sizes *sizes) {
    if (sizes->first == NULL) {
        sizes->first = tensor;
        PyObject *dtype = PyObject_GetAttr(tensor, s_dtype);
        if (dtype == NULL) return -1;
        PyObject *code = PyDict_GetItemWithError(dtypes, dtype);
        Py_DECREF(dtype);
        if (code != NULL && parse_u64(code, &sizes->dtype)) return -1;
        if (code == NULL && PyErr_Occurred()) return -1;
    }
    int64_t nbytes;
    if (read_i64(tensor, s_nbytes, &nbytes)) { /* sparse tensors have none */
        PyErr_Clear();
        sizes->flags |= FLAG_NO_SIZE;
    } else {
        sizes->nbytes += (uint64_t)nbytes;
    }
    return 0;
}

/* A tensor, a list of tensors, or a list of lists. */
static int measure(PyObject *tensors, PyObject *dtypes, Sizes *sizes) {
    if (!PyList_Check(tensors)) return measure_tensor(tensors, dtypes, sizes);
    Py_ssize_t n = PyList_Size(tensors);
    for (Py_ssize_t i = 0; i < n; i++)
        if (measure(PyList_GetItem(tensors, i), dtypes, sizes)) return -1;
    return 0;
}

/* 1 where tensors gathered from the members differ in size. */
static int is_uneven(PyObject *tensors, int64_t *expected) {
    if (PyList_Check(tensors)) {
        Py_ssize_t n = PyList_Size(tensors);
        for (Py_ssize_t i = 0; i < n; i++) {
            int uneven = is_uneven(PyList_GetItem(tensors, i), expected);
            if (uneven != 0) return uneven;
        }
        return 0;
    }
    PyObject *result = PyObject_CallMethodObjArgs(tensors, s_numel, NULL);
    if (result == NULL) return -1;
    int64_t numel;
    int failed = parse_i64(result, &numel);
    Py_DECREF(result);
    if (failed) return -1;
    if (*expected < 0) *expected = numel;
    return numel != *expected;
}

/* ================================================================================================================== */
/* Official hooks (torch >= 2.14): one pre and one post callable per group                                            */
/* ================================================================================================================== */
typedef struct {
    uint8_t known, op, flags, rooted, silent;
} Operation;
static Operation operations[MAX_HOOK_NAMES];

/* set_operations({number: (op, flags, rooted, silent)}) */
static PyObject *set_operations(PyObject *module, PyObject *table) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    (void)module;
    if (!PyDict_Check(table)) {
        PyErr_SetString(PyExc_TypeError, "set_operations takes a dict");
        return NULL;
    }
    memset(operations, 0, sizeof operations);
    while (PyDict_Next(table, &position, &key, &value)) {
        uint64_t number;
        unsigned char op, flags;
        int rooted, silent;
        if (parse_u64(key, &number) || !PyArg_ParseTuple(value, "bbpp", &op, &flags, &rooted, &silent)) return NULL;
        if (number < MAX_HOOK_NAMES)
            operations[number] = (Operation){
                .known = 1, .op = op, .flags = flags, .rooted = (uint8_t)rooted, .silent = (uint8_t)silent};
    }
    Py_RETURN_NONE;
}

typedef struct {
    PyObject_HEAD
    HookGroup *group;
} Hook;

/* Take out what this thread has issued and not seen the post hook of; 0 if there is nothing. */
static int take_issued(HookGroup *group, Issued *out) {
    unsigned long thread = PyThread_get_thread_ident();
    for (int i = 0; i < group->issued_count; i++)
        if (group->issued[i].thread == thread) {
            *out = group->issued[i];
            group->issued[i] = group->issued[--group->issued_count];
            return 1;
        }
    return 0;
}

static int before_operation(HookGroup *group, PyObject *args, uint64_t now) {
    PyObject *name = PyObject_GetAttr(args, s_name);
    if (name == NULL) return -1;
    uint64_t number;
    int failed = parse_number(name, &number);
    Py_DECREF(name);
    if (failed) return -1;
    if (number >= MAX_HOOK_NAMES || !operations[number].known) return 0;
    Operation operation = operations[number];
    if (group->row == ROW_UNDEFINED && define_group(group)) return -1;
    if (group->row < 0) return 0;
    uint64_t flags = operation.flags;
    Switch *gate = group->gate;
    if (!gate->enabled) {
        record_skip(group->recorder, (Py_ssize_t)group->row, flags);
        return 0;
    }
    if (group->open->count) poll_oldest(group->open, 4);
    PyObject *tensors = PyObject_GetAttr(args, operation.op == OP_RECV ? s_output_tensors : s_input_tensors);
    if (tensors == NULL) return -1;
    Sizes sizes = {0};
    if (measure(tensors, group->dtypes, &sizes)) {
        Py_DECREF(tensors);
        return -1;
    }
    if (sizes.flags & FLAG_NO_SIZE) sizes.nbytes = 0;
    int on_host = group->on_cpu;
    if (!on_host && group->cpu_on_host && group->completes && sizes.first != NULL)
        on_host = read_bool(sizes.first, s_is_cpu);
    Py_DECREF(tensors);
    if (on_host < 0) return -1;
    flags |= sizes.flags;
    if (operation.op == OP_ALL_GATHER && !group->on_cpu && !(flags & FLAG_NO_SIZE)) {
        PyObject *outputs = PyObject_GetAttr(args, s_output_tensors);
        int64_t expected = -1;
        int uneven = outputs == NULL ? -1 : is_uneven(outputs, &expected);
        Py_XDECREF(outputs);
        if (uneven < 0) return -1;
        if (uneven) flags |= FLAG_NO_SIZE;
    }
    int64_t peer = -1;
    if (operation.rooted) {
        int64_t root;
        if (read_i64(args, s_root, &root)) return -1;
        if (root >= 0 && root < group->size) peer = group->members[root];
    }
    uint64_t seq = record_enqueue(group->recorder, (Py_ssize_t)group->row, operation.op, sizes.nbytes, sizes.dtype,
                                  peer, flags, now);
    if (note_site(group, seq, flags)) return -1;
    if (gate->check != NULL && gate->check != Py_None) {
        PyObject *inputs = PyObject_GetAttr(args, s_input_tensors);
        int unchecked = inputs == NULL || check_inputs(group, seq, flags, operation.op, peer, inputs);
        Py_XDECREF(inputs);
        if (unchecked) return -1;
    }
    if (group->completes) {
        Issued raised; /* never reached its post hook: it raised while it was issued, and will not end */
        if (group->issued_count && take_issued(group, &raised))
            record_complete(group->recorder, (Py_ssize_t)group->row, raised.seq, 0, raised.flags | FLAG_FAILED);
        if (group->issued_count < MAX_ISSUED)
            group->issued[group->issued_count++] = (Issued){.thread = PyThread_get_thread_ident(),
                                                            .seq = seq,
                                                            .flags = (uint32_t)flags,
                                                            .on_host = on_host,
                                                            .silent = operation.silent};
    }
    return 0;
}

static PyObject *PreHook_call(Hook *self, PyObject *args, PyObject *kwargs) {
    HookGroup *group = self->group;
    Switch *gate = group->gate;
    (void)kwargs;
    if (!gate->stopped) {
        PyObject *given = PyTuple_GetItem(args, 0);
        uint64_t now = now_ns();
        if ((given == NULL || before_operation(group, given, now)) && report_error(gate)) return NULL;
        count_call(gate, now);
    }
    Py_RETURN_NONE;
}

static int after_operation(HookGroup *group, PyObject *args) {
    Issued issued;
    if (group->issued_count == 0 || !take_issued(group, &issued) || !issued.on_host) return 0;
    PyObject *work = PyObject_GetAttr(args, s_work);
    if (work == NULL) return -1;
    int failed = 0;
    if (work == Py_None)
        record_complete(group->recorder, (Py_ssize_t)group->row, issued.seq, 0, issued.flags);
    else
        failed = hold_work(group->open, work, (Py_ssize_t)group->row, issued.seq, issued.flags, issued.silent);
    Py_DECREF(work);
    return failed;
}

static PyObject *PostHook_call(Hook *self, PyObject *args, PyObject *kwargs) {
    HookGroup *group = self->group;
    (void)kwargs;
    if (!group->gate->stopped) {
        PyObject *given = PyTuple_GetItem(args, 0);
        if ((given == NULL || after_operation(group, given)) && report_error(group->gate)) return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *Hook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *group;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!", HookGroup_type, &group)) return NULL;
    Hook *self = (Hook *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF(group);
    self->group = (HookGroup *)group;
    return (PyObject *)self;
}

static void Hook_dealloc(Hook *self) {
    Py_XDECREF((PyObject *)self->group);
    free_object((PyObject *)self);
}

static PyType_Slot PreHook_slots[] = {
    {Py_tp_new, Hook_new}, {Py_tp_dealloc, Hook_dealloc}, {Py_tp_call, PreHook_call}, {0, NULL}};
static PyType_Spec PreHook_spec = {"whichrank.instrumentation._recorder.PreHook", sizeof(Hook), 0, Py_TPFLAGS_DEFAULT,
                                   PreHook_slots};
static PyType_Slot PostHook_slots[] = {
    {Py_tp_new, Hook_new}, {Py_tp_dealloc, Hook_dealloc}, {Py_tp_call, PostHook_call}, {0, NULL}};
static PyType_Spec PostHook_spec = {"whichrank.instrumentation._recorder.PostHook", sizeof(Hook), 0, Py_TPFLAGS_DEFAULT,
                                    PostHook_slots};

/* ================================================================================================================== */
/* BackendSelect (torch 2.6 to 2.13): one callable per c10d operation                                                 */
/* ================================================================================================================== */
enum { GROUP_CACHE = 64 };

typedef struct {
    PyObject *pg; /* identity only, not a reference: forget_groups() empties the cache whenever a group comes or goes */
    HookGroup *group; /* a reference, or NULL: not recorded */
} CachedGroup;
static CachedGroup cached_groups[GROUP_CACHE];
static int cached_count = 0;

static PyObject *forget_groups(PyObject *module, PyObject *ignored) {
    (void)module;
    (void)ignored;
    int count = cached_count;
    HookGroup *gone[GROUP_CACHE];
    cached_count = 0;
    for (int i = 0; i < count; i++) gone[i] = cached_groups[i].group;
    for (int i = 0; i < count; i++) Py_XDECREF((PyObject *)gone[i]);
    Py_RETURN_NONE;
}

typedef struct {
    PyObject_HEAD
    Switch *gate;
    PyObject *redispatch, *after, *unbox_group, *unbox_work, *find;
    PyObject *__name__;
    uint8_t op, flags;
    int silent, group_index, root_index, sized_index, output_index;
} DispatchHook;

/* New reference, or NULL without an exception where the group is not recorded. */
static HookGroup *find_group(DispatchHook *self, PyObject *pg) {
    for (int i = 0; i < cached_count; i++)
        if (cached_groups[i].pg == pg) {
            Py_XINCREF((PyObject *)cached_groups[i].group);
            return cached_groups[i].group;
        }
    PyObject *found = PyObject_CallFunctionObjArgs(self->find, pg, NULL);
    if (found == NULL) return NULL;
    if (found == Py_None) { /* not cached: it may be taken in later */
        Py_DECREF(found);
        return NULL;
    }
    if (Py_TYPE(found) != HookGroup_type) {
        Py_DECREF(found);
        PyErr_SetString(PyExc_TypeError, "find returned no HookGroup");
        return NULL;
    }
    if (cached_count < GROUP_CACHE) {
        Py_INCREF(found);
        cached_groups[cached_count++] = (CachedGroup){.pg = pg, .group = (HookGroup *)found};
    }
    return (HookGroup *)found;
}

typedef struct {
    HookGroup *group; /* owned; NULL: not recorded */
    uint64_t seq, flags;
    int on_host;
} Recorded;

/* args includes the keyset at index 0, so schema positions are one higher. */
static int before_dispatch(DispatchHook *self, PyObject *args, uint64_t now, Recorded *out) {
    PyObject *boxed = PyTuple_GetItem(args, self->group_index + 1);
    if (boxed == NULL) return -1;
    PyObject *pg = PyObject_CallFunctionObjArgs(self->unbox_group, boxed, NULL);
    if (pg == NULL) return -1;
    HookGroup *group = find_group(self, pg);
    Py_DECREF(pg);
    if (group == NULL) return PyErr_Occurred() ? -1 : 0;
    if (group->row == ROW_UNDEFINED && define_group(group)) goto fail;
    if (group->row < 0) goto leave;
    uint64_t flags = self->flags;
    Sizes sizes = {0};
    int on_host = group->on_cpu;
    if (self->sized_index >= 0) {
        PyObject *tensors = PyTuple_GetItem(args, self->sized_index + 1), *probe = tensors;
        while (probe != NULL && PyList_Check(probe)) probe = PyList_Size(probe) ? PyList_GetItem(probe, 0) : NULL;
        if (probe != NULL) {
            int meta = read_bool(probe, s_is_meta);
            if (meta < 0) goto fail;
            if (meta) goto leave; /* traced, not issued; a FakeTensor may claim a device, see below */
            PyObject *kind = PyObject_GetAttrString((PyObject *)Py_TYPE(probe), "__name__");
            if (kind == NULL) goto fail;
            int fake = PyUnicode_CompareWithASCIIString(kind, "FakeTensor") == 0;
            Py_DECREF(kind);
            if (fake) goto leave;
            if (group->gate->enabled) {
                if (measure(tensors, group->dtypes, &sizes)) goto fail;
                if (!on_host && group->cpu_on_host && group->completes &&
                    (on_host = read_bool(probe, s_is_cpu)) < 0)
                    goto fail;
            }
        }
    }
    if (!group->gate->enabled) {
        record_skip(group->recorder, (Py_ssize_t)group->row, flags);
        goto leave;
    }
    if (sizes.flags & FLAG_NO_SIZE) sizes.nbytes = 0;
    flags |= sizes.flags;
    if (group->open->count) poll_oldest(group->open, 4);
    if (self->output_index >= 0 && !group->on_cpu) {
        int64_t expected = -1;
        int uneven = is_uneven(PyTuple_GetItem(args, self->output_index + 1), &expected);
        if (uneven < 0) goto fail;
        if (uneven) flags |= FLAG_NO_SIZE;
    }
    int64_t peer = -1;
    if (self->root_index >= 0) {
        int64_t root;
        if (parse_i64(PyTuple_GetItem(args, self->root_index + 1), &root)) goto fail;
        if (root >= 0 && root < group->size) peer = group->members[root];
    }
    out->seq = record_enqueue(group->recorder, (Py_ssize_t)group->row, self->op, sizes.nbytes, sizes.dtype, peer,
                              flags, now);
    out->flags = flags;
    out->on_host = on_host;
    if (note_site(group, out->seq, flags)) goto fail;
    if (self->sized_index >= 0 &&
        check_inputs(group, out->seq, flags, self->op, peer, PyTuple_GetItem(args, self->sized_index + 1)))
        goto fail;
    out->group = group;
    return 0;
fail:
    Py_DECREF((PyObject *)group);
    return -1;
leave:
    Py_DECREF((PyObject *)group);
    return 0;
}

static int after_dispatch(DispatchHook *self, Recorded *recorded, PyObject *result) {
    HookGroup *group = recorded->group;
    PyObject *boxed = result;
    if (PyTuple_Check(result)) {
        Py_ssize_t n = PyTuple_Size(result);
        boxed = n ? PyTuple_GetItem(result, n - 1) : Py_None;
    }
    if (boxed == Py_None) {
        record_complete(group->recorder, (Py_ssize_t)group->row, recorded->seq, 0, recorded->flags);
        return 0;
    }
    PyObject *work = PyObject_CallFunctionObjArgs(self->unbox_work, boxed, NULL);
    if (work == NULL) return -1;
    int failed = hold_work(group->open, work, (Py_ssize_t)group->row, recorded->seq, recorded->flags, self->silent);
    Py_DECREF(work);
    return failed;
}

static PyObject *DispatchHook_call(DispatchHook *self, PyObject *args, PyObject *kwargs) {
    Recorded recorded = {0};
    Switch *gate = self->gate;
    Py_ssize_t n = PyTuple_Size(args);
    (void)kwargs;
    if (!gate->stopped && n > 0) {
        uint64_t now = now_ns();
        if (before_dispatch(self, args, now, &recorded) && report_error(gate)) return NULL;
        count_call(gate, now);
    }
    PyObject *below = PyTuple_New(n), *keyset, *result = NULL;
    if (below == NULL || n == 0) goto done;
    keyset = PyNumber_And(PyTuple_GetItem(args, 0), self->after);
    if (keyset == NULL) goto done;
    PyTuple_SetItem(below, 0, keyset);
    for (Py_ssize_t i = 1; i < n; i++) {
        PyObject *item = PyTuple_GetItem(args, i);
        Py_INCREF(item);
        PyTuple_SetItem(below, i, item);
    }
    result = PyObject_Call(self->redispatch, below, NULL);
    if (recorded.group != NULL && recorded.group->completes) {
        if (result == NULL) {
            record_complete(recorded.group->recorder, (Py_ssize_t)recorded.group->row, recorded.seq, 0,
                            recorded.flags | FLAG_FAILED);
        } else if (recorded.on_host && after_dispatch(self, &recorded, result) && report_error(gate)) {
            Py_CLEAR(result);
        }
    }
done:
    Py_XDECREF(below);
    Py_XDECREF((PyObject *)recorded.group);
    if (result == NULL && !PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "collective called without arguments");
    return result;
}

static PyObject *DispatchHook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"gate", "redispatch", "after",       "unbox_group", "unbox_work",  "find", "name",
                            "op",   "flags",      "silent",      "group_index", "root_index",  "sized_index", "output_index", NULL};
    PyObject *gate, *redispatch, *after, *unbox_group, *unbox_work, *find, *name;
    unsigned char op, flags;
    int silent, group_index, root_index, sized_index, output_index;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOOOOUbbpiiii", names, Switch_type, &gate, &redispatch, &after,
                                     &unbox_group, &unbox_work, &find, &name, &op, &flags, &silent, &group_index, &root_index,
                                     &sized_index, &output_index))
        return NULL;
    DispatchHook *self = (DispatchHook *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    PyObject *kept[] = {gate, redispatch, after, unbox_group, unbox_work, find, name};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) Py_INCREF(kept[i]);
    self->gate = (Switch *)gate;
    self->redispatch = redispatch;
    self->after = after;
    self->unbox_group = unbox_group;
    self->unbox_work = unbox_work;
    self->find = find;
    self->__name__ = name;
    self->op = op;
    self->flags = flags;
    self->silent = silent;
    self->group_index = group_index;
    self->root_index = root_index;
    self->sized_index = sized_index;
    self->output_index = output_index;
    return (PyObject *)self;
}

static void DispatchHook_dealloc(DispatchHook *self) {
    Py_XDECREF((PyObject *)self->gate);
    Py_XDECREF(self->redispatch);
    Py_XDECREF(self->after);
    Py_XDECREF(self->unbox_group);
    Py_XDECREF(self->unbox_work);
    Py_XDECREF(self->find);
    Py_XDECREF(self->__name__);
    free_object((PyObject *)self);
}

static PyMemberDef DispatchHook_members[] = {{"__name__", T_OBJECT_EX, offsetof(DispatchHook, __name__), READONLY, NULL},
                                             {NULL, 0, 0, 0, NULL}};
static PyType_Slot DispatchHook_slots[] = {{Py_tp_new, DispatchHook_new},
                                           {Py_tp_dealloc, DispatchHook_dealloc},
                                           {Py_tp_call, DispatchHook_call},
                                           {Py_tp_members, DispatchHook_members},
                                           {0, NULL}};
static PyType_Spec DispatchHook_spec = {"whichrank.instrumentation._recorder.DispatchHook", sizeof(DispatchHook), 0,
                                        Py_TPFLAGS_DEFAULT, DispatchHook_slots};

/* ================================================================================================================== */
/* Module                                                                                                             */
/* ================================================================================================================== */
static PyMethodDef module_methods[] = {
    {"set_operations", (PyCFunction)set_operations, METH_O, NULL},
    {"forget_groups", (PyCFunction)forget_groups, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "_recorder",
                                               "The C recorder; see the head of _recorder.c.", -1, module_methods,
                                               NULL, NULL, NULL, NULL};

/* For the test that compares with telemetry/ring_layout.py. */
#define LAYOUT(X)                                                                                                     \
    X(H_EVENT_HEAD) X(ROW_BYTES) X(FIRST_GROUP_ROW) X(EVENT_BYTES) X(R_STEP) X(R_PHASE) X(R_PHASE_SINCE_NS)           \
    X(R_STEP_SINCE_NS) X(R_LOSS) X(R_GRAD_NORM) X(R_LOSS_STEP) X(R_LEVEL) X(R_HOOK_STATE) X(R_COST_NS) X(R_CALLS)     \
    X(R_EXIT_STATE) X(R_FLAGS) X(R_MICROSTEPS) X(G_VERSION) X(G_ENQUEUED) X(G_P2P_ENQUEUED) X(G_ENQUEUE_NS)           \
    X(G_SIGNATURE) X(G_BYTES) X(G_PEER) X(G_DONE_VERSION) X(G_COMPLETED) X(G_P2P_COMPLETED) X(G_COMPLETE_NS)          \
    X(G_STARTED) X(G_STARTED_NS) X(G_OLDEST_OPEN_NS) X(G_OPEN) X(RUN_DELAY_PERIOD_NS)

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec, const char *name) {
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL) return NULL;
    Py_INCREF(type);
    if (PyModule_AddObject(module, name, type) < 0) {
        Py_DECREF(type);
        Py_DECREF(type);
        return NULL;
    }
    return (PyTypeObject *)type;
}

PyMODINIT_FUNC PyInit__recorder(void) {
    static const struct {
        PyObject **place;
        const char *text;
    } names[] = {{&s_name, "name"},       {&s_input_tensors, "input_tensors"}, {&s_output_tensors, "output_tensors"},
                 {&s_nbytes, "nbytes"},   {&s_dtype, "dtype"},                 {&s_root, "root"},
                 {&s_work, "work"},                   {&s_is_cpu, "is_cpu"},
                 {&s_is_meta, "is_meta"}, {&s_numel, "numel"}};
    static int prepared_fork = 0;
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL) return NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (*names[i].place == NULL) *names[i].place = PyUnicode_InternFromString(names[i].text);
        if (*names[i].place == NULL) goto fail;
    }
    if ((Recorder_type = add_type(module, &Recorder_spec, "Recorder")) == NULL ||
        (Switch_type = add_type(module, &Switch_spec, "HookSwitch")) == NULL ||
        (OpenWork_type = add_type(module, &OpenWork_spec, "OpenWork")) == NULL ||
        (HookGroup_type = add_type(module, &HookGroup_spec, "HookGroup")) == NULL ||
        add_type(module, &PreHook_spec, "PreHook") == NULL || add_type(module, &PostHook_spec, "PostHook") == NULL ||
        add_type(module, &DispatchHook_spec, "DispatchHook") == NULL)
        goto fail;
    PyObject *layout = PyDict_New();
    if (layout == NULL) goto fail;
#define ADD(name)                                                                                                     \
    {                                                                                                                 \
        PyObject *value = PyLong_FromLong(name);                                                                      \
        if (value == NULL || PyDict_SetItemString(layout, #name, value) < 0) goto fail;                               \
        Py_DECREF(value);                                                                                             \
    }
    LAYOUT(ADD)
    if (PyModule_AddObject(module, "LAYOUT", layout) < 0) goto fail;
    if (PyModule_AddIntConstant(module, "MAX_OPEN", MAX_OPEN) < 0) goto fail;
    if (!prepared_fork) {
        pthread_atfork(NULL, NULL, forget_all_in_child);
        prepared_fork = 1;
    }
    return module;
fail:
    Py_DECREF(module);
    return NULL;
}
