/* The phase tracker in C: phases.PhaseTracker with the same methods and behaviour, on CPython's stable ABI (3.10).
 *
 * A training step calls it six times and more, each time with cold caches, where the Python class costs about three
 * times as much. Read phases.py for the reasons, and change both together (one test suite runs on both). Everything
 * runs under the GIL. What happens once in a job (exceptions) is in Python, see phases_native.py.
 * Never raises: an error goes to guard.fail, and the tracker is off from then on. Exceptions that are not errors
 * (KeyboardInterrupt) are not ours to swallow and go through.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include <structmember.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum {
    MAX_PHASES = 16,
    COST_EVERY = 61, /* own cost is measured on one call in so many, in CPU time of the thread; a prime */
};

typedef struct {
    uint64_t identifier;
    uint8_t phase;
    uint8_t shown;
    uint8_t left_open;
} Entry;

typedef struct {
    PyObject_HEAD
    char enabled; /* false while the level is off */
    char failed;  /* for good, by an error */
    int base;     /* shown while the stack is empty */
    int shown;
    unsigned long main_thread;
    Py_ssize_t depth, capacity;
    Entry *stack;
    uint64_t next_identifier;
    unsigned long long calls;
    long long cost_ns;
    PyObject *set_phase;
    PyObject *guard;
    int phases; /* the vocabulary's number of them */
    int init, other;
    uint8_t loop[MAX_PHASES];                 /* [phase]: the training loop has begun */
    uint8_t combined[MAX_PHASES][MAX_PHASES]; /* [outer][inner]: what is shown */
    uint8_t closes[MAX_PHASES][MAX_PHASES];   /* [left open][begins]: the first has ended */
} Tracker;

static PyObject *s_left_open, *s_by_hand, *s_fail;

/* CPU time of the thread. */
static long long spent_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Hand the set exception to the guard. 0: none is set any more. -1: it is not an error, and still set. */
static int fail(Tracker *self) {
    PyObject *type, *value, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    self->failed = 1;
    PyObject *result = PyObject_CallMethodObjArgs(self->guard, s_fail, value ? value : Py_None, NULL);
    if (result == NULL) PyErr_Clear();
    Py_XDECREF(result);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return 0;
}

static int show(Tracker *self, int phase) {
    self->shown = phase;
    PyObject *number = PyLong_FromLong(phase);
    if (number == NULL) return -1;
    PyObject *result = PyObject_CallFunctionObjArgs(self->set_phase, number, NULL);
    Py_DECREF(number);
    if (result == NULL) return -1;
    Py_DECREF(result);
    return 0;
}

static int parse_phase(Tracker *self, PyObject *object, int *out) {
    long phase = PyLong_AsLong(object);
    if (phase == -1 && PyErr_Occurred()) return -1;
    if (phase < 0 || phase >= self->phases) {
        PyErr_Format(PyExc_ValueError, "no phase %ld", phase);
        return -1;
    }
    *out = (int)phase;
    return 0;
}

static int is_main_thread(Tracker *self) { return PyThread_get_thread_ident() == self->main_thread; }

static int what_is_around(Tracker *self) { return self->depth ? self->stack[self->depth - 1].shown : self->base; }

/* Returns the identifier; 0 with an exception set. */
static uint64_t begin_phase(Tracker *self, PyObject *phase_object, int left_open, int by_hand) {
    int phase;
    if (parse_phase(self, phase_object, &phase)) return 0;
    while (self->depth) {
        Entry *top = &self->stack[self->depth - 1];
        if (!top->left_open || !self->closes[top->phase][phase]) break;
        self->depth--;
    }
    if (self->base == self->init && self->loop[phase]) self->base = self->other;
    int shown = by_hand ? phase : self->combined[what_is_around(self)][phase];
    if (self->depth == self->capacity) {
        Py_ssize_t capacity = self->capacity ? 2 * self->capacity : 16;
        Entry *stack = PyMem_Realloc(self->stack, (size_t)capacity * sizeof(Entry));
        if (stack == NULL) {
            PyErr_NoMemory();
            return 0;
        }
        self->stack = stack;
        self->capacity = capacity;
    }
    uint64_t identifier = ++self->next_identifier;
    self->stack[self->depth++] = (Entry){identifier, (uint8_t)phase, (uint8_t)shown, (uint8_t)left_open};
    if (shown != self->shown && show(self, shown)) return 0;
    return identifier;
}

static PyObject *Tracker_enter(Tracker *self, PyObject *const *a, Py_ssize_t n, PyObject *names) {
    int left_open = 0, by_hand = 0;
    if (n != 1) {
        PyErr_Format(PyExc_TypeError, "enter takes one phase, not %zd", n);
        return NULL;
    }
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_Size(names); i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        int value = PyObject_IsTrue(a[n + i]);
        if (value < 0) return NULL;
        if (name == s_left_open || PyUnicode_Compare(name, s_left_open) == 0) {
            left_open = value;
        } else if (name == s_by_hand || PyUnicode_Compare(name, s_by_hand) == 0) {
            by_hand = value;
        } else {
            PyErr_Format(PyExc_TypeError, "enter has no argument %U", name);
            return NULL;
        }
    }
    if (!self->enabled || self->failed || !is_main_thread(self)) return PyLong_FromLong(0);
    int sampled = ++self->calls % COST_EVERY == 0;
    long long begin_ns = sampled ? spent_ns() : 0;
    uint64_t identifier = begin_phase(self, a[0], left_open, by_hand);
    if (identifier == 0 && fail(self)) return NULL;
    if (sampled) self->cost_ns += (spent_ns() - begin_ns) * COST_EVERY;
    return PyLong_FromUnsignedLongLong(identifier);
}

/* Ends the phase; -1 with an exception set. */
static int end_phase(Tracker *self, uint64_t identifier) {
    Py_ssize_t index = self->depth - 1;
    while (index >= 0 && self->stack[index].identifier > identifier) index--;
    if (index < 0 || self->stack[index].identifier != identifier) return 0;
    self->depth = index;
    int shown = what_is_around(self);
    return shown != self->shown && self->enabled ? show(self, shown) : 0;
}

static PyObject *Tracker_leave(Tracker *self, PyObject *object) {
    uint64_t identifier = PyLong_AsUnsignedLongLong(object);
    if (identifier == (uint64_t)-1 && PyErr_Occurred()) return NULL;
    if (identifier && !self->failed) {
        int sampled = ++self->calls % COST_EVERY == 0;
        long long begin_ns = sampled ? spent_ns() : 0;
        if (end_phase(self, identifier) && fail(self)) return NULL;
        if (sampled) self->cost_ns += (spent_ns() - begin_ns) * COST_EVERY;
    }
    Py_RETURN_NONE;
}

static PyObject *Tracker_set_base(Tracker *self, PyObject *object) {
    int phase;
    if (self->failed || !is_main_thread(self)) Py_RETURN_NONE;
    if (parse_phase(self, object, &phase)) {
        if (fail(self)) return NULL;
        Py_RETURN_NONE;
    }
    self->base = phase;
    if (self->depth == 0 && phase != self->shown && self->enabled && show(self, phase) && fail(self)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *Tracker_force(Tracker *self, PyObject *object) {
    int phase;
    if (parse_phase(self, object, &phase)) {
        if (fail(self)) return NULL;
        Py_RETURN_NONE;
    }
    self->depth = 0;
    self->base = phase;
    if (phase != self->shown && show(self, phase) && fail(self)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *Tracker_in_main_thread(Tracker *self, PyObject *Py_UNUSED(ignored)) {
    return PyBool_FromLong(is_main_thread(self));
}

static PyObject *Tracker_depth(Tracker *self, PyObject *Py_UNUSED(ignored)) { return PyLong_FromSsize_t(self->depth); }

/* Only tables of this vocabulary come here (phases_native.py); numbers outside it would index outside the arrays. */
static int read_table(PyObject *bytes, uint8_t *out, int rows, int columns, int below) {
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &data, &size)) return -1;
    if (size != (Py_ssize_t)rows * columns) {
        PyErr_SetString(PyExc_ValueError, "a table of phases has the wrong size");
        return -1;
    }
    for (int i = 0; i < rows * columns; i++) {
        if ((uint8_t)data[i] >= below) {
            PyErr_SetString(PyExc_ValueError, "a table of phases has a number that is none");
            return -1;
        }
        out[i / columns * MAX_PHASES + i % columns] = (uint8_t)data[i];
    }
    return 0;
}

static PyObject *Tracker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"set_phase", "guard", "main_thread", "phases", "init", "other", "combined", "closes", "loop", NULL};
    PyObject *set_phase, *guard, *combined, *closes, *loop;
    unsigned long main_thread;
    int phases, init, other;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOkiiiSSS", names, &set_phase, &guard, &main_thread, &phases, &init,
                                     &other, &combined, &closes, &loop))
        return NULL;
    if (phases < 1 || phases > MAX_PHASES || init < 0 || init >= phases || other < 0 || other >= phases) {
        PyErr_SetString(PyExc_ValueError, "phases do not fit");
        return NULL;
    }
    Tracker *self = (Tracker *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    if (read_table(combined, &self->combined[0][0], phases, phases, phases) ||
        read_table(closes, &self->closes[0][0], phases, phases, 2) || read_table(loop, self->loop, 1, phases, 2)) {
        Py_DECREF(self);
        return NULL;
    }
    Py_INCREF(set_phase);
    Py_INCREF(guard);
    self->set_phase = set_phase;
    self->guard = guard;
    self->main_thread = main_thread;
    self->phases = phases;
    self->init = self->base = self->shown = init;
    self->other = other;
    self->enabled = 1;
    return (PyObject *)self;
}

static void Tracker_dealloc(Tracker *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->set_phase);
    Py_XDECREF(self->guard);
    PyMem_Free(self->stack);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

/* base is set from outside, by hooks that look at it first. */
static PyObject *Tracker_get_base(Tracker *self, void *Py_UNUSED(closure)) { return PyLong_FromLong(self->base); }

static int Tracker_write_base(Tracker *self, PyObject *value, void *Py_UNUSED(closure)) {
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "base cannot be deleted");
        return -1;
    }
    return parse_phase(self, value, &self->base);
}

static PyMemberDef Tracker_members[] = {
    {"enabled", T_BOOL, offsetof(Tracker, enabled), 0, NULL},
    {"_set_phase", T_OBJECT_EX, offsetof(Tracker, set_phase), 0, NULL},
    {"shown", T_INT, offsetof(Tracker, shown), READONLY, NULL},
    {"calls", T_ULONGLONG, offsetof(Tracker, calls), 0, NULL},
    {"cost_ns", T_LONGLONG, offsetof(Tracker, cost_ns), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef Tracker_getset[] = {
    {"base", (getter)Tracker_get_base, (setter)Tracker_write_base, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef Tracker_methods[] = {
    {"enter", FAST(Tracker_enter), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"leave", (PyCFunction)Tracker_leave, METH_O, NULL},
    {"set_base", (PyCFunction)Tracker_set_base, METH_O, NULL},
    {"force", (PyCFunction)Tracker_force, METH_O, NULL},
    {"in_main_thread", (PyCFunction)Tracker_in_main_thread, METH_NOARGS, NULL},
    {"depth", (PyCFunction)Tracker_depth, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot Tracker_slots[] = {
    {Py_tp_doc, "Stack of phases of the main thread; see phases.PhaseTracker for what the methods mean."},
    {Py_tp_new, Tracker_new},
    {Py_tp_dealloc, Tracker_dealloc},
    {Py_tp_methods, Tracker_methods},
    {Py_tp_members, Tracker_members},
    {Py_tp_getset, Tracker_getset},
    {0, NULL},
};
static PyType_Spec Tracker_spec = {"whichrank.instrumentation._phases.PhaseTracker", sizeof(Tracker), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, Tracker_slots};

static struct PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "_phases",
                                               "The phase tracker in C; see the head of _phases.c.", -1, NULL,
                                               NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__phases(void) {
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL) return NULL;
    if (s_left_open == NULL) s_left_open = PyUnicode_InternFromString("left_open");
    if (s_by_hand == NULL) s_by_hand = PyUnicode_InternFromString("by_hand");
    if (s_fail == NULL) s_fail = PyUnicode_InternFromString("fail");
    PyObject *type = s_left_open && s_by_hand && s_fail ? PyType_FromSpec(&Tracker_spec) : NULL;
    if (type == NULL || PyModule_AddObject(module, "PhaseTracker", type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
