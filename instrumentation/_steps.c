/* What a training step calls besides its phases, in C: steps.StepCounter, loss.ScalarReader's usual case and
 * optimizer_edges.OptimizerEdges, with the same methods and behaviour, on CPython's stable ABI (3.10).
 *
 * A training step calls them with cold caches, where every Python frame that is saved is one to two microseconds. Read
 * the Python modules for the reasons, and change both together (one test suite runs on both). Everything runs under the
 * GIL and in the main thread. Errors go to guard.fail, and that part is off from then on; exceptions that are not
 * errors (KeyboardInterrupt) are not ours to swallow and go through.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include <structmember.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum {
    MAX_TURNS = 4,   /* as in step_counter.py */
    MAX_KNOWN = 64,
    COST_EVERY = 16, /* own cost is measured on one step in this many, never the first */
    MAX_NESTED = 8,  /* optimizers inside optimizers; deeper: ends were not seen because steps raised */
};

static PyObject *s_enabled, *s_fail, *s_skipped, *s_is_cpu, *s_read_other, *s_left_open, *s_dtype;

/* CPU time of the thread. */
static long long spent_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Hand the set exception to the guard. 0: none is set any more. -1: it is not an error, and still set. */
static int fail(PyObject *guard) {
    PyObject *type, *value, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *result = PyObject_CallMethodObjArgs(guard, s_fail, value ? value : Py_None, NULL);
    if (result == NULL) PyErr_Clear();
    Py_XDECREF(result);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return 0;
}

static PyObject *none_or_fail(PyObject *guard, int status) {
    if (status && fail(guard)) return NULL;
    Py_RETURN_NONE;
}

/* Whether the attribute "enabled" is true; errors count as false. */
static int is_enabled(PyObject *object) {
    PyObject *value = PyObject_GetAttr(object, s_enabled);
    if (value == NULL) {
        PyErr_Clear();
        return 0;
    }
    int enabled = value == Py_True;
    Py_DECREF(value);
    return enabled;
}

/* Calls and drops the result; -1 with an exception set. */
static int call(PyObject *function, PyObject *argument) {
    PyObject *result = PyObject_CallFunctionObjArgs(function, argument, NULL);
    if (result == NULL) return -1;
    Py_DECREF(result);
    return 0;
}

/* --- StepCounter ------------------------------------------------------------------------------------------------- */
typedef struct {
    PyObject_HEAD
    char enabled; /* false while the level is off */
    char by_hand, backward_seen, auto_since_hand;
    PyObject *loss, *grad_norm; /* float, or NULL: none yet */
    PyObject *end_step, *add_microstep, *set_loss;
    PyObject *guard;
    int skipped_flag, by_hand_flag;
    long long optimizer_calls, step, calls, cost_ns;
    uintptr_t *stepped; /* identities of the optimizers that have stepped in this round */
    int turns;          /* how many of them had a backward pass of their own */
    Py_ssize_t stepped_count, stepped_capacity;
    uintptr_t known[MAX_KNOWN]; /* identities of those that have ever stepped */
    int known_count;
    char rounds; /* a round has come to its end */
} Steps;

static int counts(Steps *self) { return self->enabled && is_enabled(self->guard); }

/* Keeps the value unless one that is not finite is kept already. 1: kept. 0: not. -1: an exception is set. */
static int keep(PyObject **place, PyObject *value) {
    if (*place != NULL && !isfinite(PyFloat_AsDouble(*place))) return 0;
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) return -1;
    PyObject *kept = PyFloat_FromDouble(number);
    if (kept == NULL) return -1;
    Py_XDECREF(*place);
    *place = kept;
    return 1;
}

static void forget_values(Steps *self) {
    Py_CLEAR(self->loss);
    Py_CLEAR(self->grad_norm);
}

/* flags: without those for loss and norm, which the writer sets. -1 with an exception set. */
static int end_step(Steps *self, int flags) {
    int sampled = ++self->calls % COST_EVERY == 0;
    long long begin_ns = sampled ? spent_ns() : 0;
    PyObject *loss = self->loss, *grad_norm = self->grad_norm, *number = PyLong_FromLong(flags);
    if (number == NULL) return -1;
    self->loss = self->grad_norm = NULL;
    self->backward_seen = 0;
    PyObject *step = PyObject_CallFunctionObjArgs(self->end_step, loss ? loss : Py_None,
                                                  grad_norm ? grad_norm : Py_None, number, NULL);
    Py_DECREF(number);
    Py_XDECREF(loss);
    Py_XDECREF(grad_norm);
    if (step == NULL) return -1;
    self->step = PyLong_AsLongLong(step);
    Py_DECREF(step);
    if (self->step == -1 && PyErr_Occurred()) return -1;
    if (sampled) self->cost_ns += (spent_ns() - begin_ns) * COST_EVERY;
    return 0;
}

static PyObject *Steps_on_backward(Steps *self, PyObject *Py_UNUSED(ignored)) {
    if (!counts(self)) Py_RETURN_NONE;
    self->backward_seen = 1;
    PyObject *result = PyObject_CallFunctionObjArgs(self->add_microstep, NULL);
    Py_XDECREF(result);
    return none_or_fail(self->guard, result == NULL);
}

static PyObject *Steps_on_loss(Steps *self, PyObject *loss) {
    if (!counts(self)) Py_RETURN_NONE;
    int kept = keep(&self->loss, loss);
    return none_or_fail(self->guard, kept < 0 || (kept && call(self->set_loss, self->loss)));
}

static PyObject *Steps_on_grad_norm(Steps *self, PyObject *grad_norm) {
    return none_or_fail(self->guard, keep(&self->grad_norm, grad_norm) < 0);
}

static int remember_stepped(Steps *self, uintptr_t identity) {
    if (self->stepped_count == self->stepped_capacity) {
        Py_ssize_t capacity = self->stepped_capacity ? 2 * self->stepped_capacity : 8;
        uintptr_t *grown = PyMem_Realloc(self->stepped, (size_t)capacity * sizeof(uintptr_t));
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->stepped = grown;
        self->stepped_capacity = capacity;
    }
    self->stepped[self->stepped_count++] = identity;
    return 0;
}

static int is_known(const Steps *self, uintptr_t identity) {
    for (int i = 0; i < self->known_count; i++)
        if (self->known[i] == identity) return 1;
    return 0;
}

static int optimizer_stepped(Steps *self, PyObject *optimizer, int skipped) {
    if (!skipped) self->optimizer_calls++;
    if (self->by_hand) return 0;
    uintptr_t identity = (uintptr_t)optimizer;
    int again = 0;
    for (Py_ssize_t i = 0; i < self->stepped_count && !again; i++) again = self->stepped[i] == identity;
    if (again || (self->backward_seen && (self->stepped_count == 0 || self->turns == MAX_TURNS ||
                                          (self->rounds && !is_known(self, identity))))) {
        if (self->stepped_count > 0) self->rounds = 1;
        self->stepped_count = 0;
        self->turns = 0;
        self->auto_since_hand = 1;
        if (end_step(self, skipped ? self->skipped_flag : 0)) return -1;
    } else if (self->backward_seen) {
        self->turns++;
        self->backward_seen = 0;
    }
    if (!again && !is_known(self, identity)) {
        if (self->known_count == MAX_KNOWN) self->known_count = 0;
        self->known[self->known_count++] = identity;
    }
    return remember_stepped(self, identity);
}

static PyObject *Steps_on_optimizer_step(Steps *self, PyObject *const *a, Py_ssize_t n, PyObject *names) {
    int skipped = 0;
    if (n != 1 || (names != NULL && PyTuple_Size(names) > 1)) {
        PyErr_SetString(PyExc_TypeError, "on_optimizer_step takes one optimizer, and skipped");
        return NULL;
    }
    if (names != NULL && PyTuple_Size(names) == 1) {
        if (PyUnicode_Compare(PyTuple_GetItem(names, 0), s_skipped)) {
            PyErr_Format(PyExc_TypeError, "on_optimizer_step has no argument %U", PyTuple_GetItem(names, 0));
            return NULL;
        }
        if ((skipped = PyObject_IsTrue(a[1])) < 0) return NULL;
    }
    if (!counts(self)) Py_RETURN_NONE;
    return none_or_fail(self->guard, optimizer_stepped(self, a[0], skipped));
}

static int ended_by_hand(Steps *self, PyObject *loss, PyObject *grad_norm) {
    if (loss != Py_None) {
        Py_CLEAR(self->loss);
        if (keep(&self->loss, loss) < 0) return -1;
    }
    if (grad_norm != Py_None) {
        Py_CLEAR(self->grad_norm);
        if (keep(&self->grad_norm, grad_norm) < 0) return -1;
    }
    int first = !self->by_hand;
    self->by_hand = 1;
    if (first && self->auto_since_hand && !self->backward_seen) {
        int status = loss != Py_None ? call(self->set_loss, self->loss) : 0;
        forget_values(self);
        return status;
    }
    return end_step(self, self->by_hand_flag);
}

static PyObject *Steps_end_by_hand(Steps *self, PyObject *args) {
    PyObject *loss, *grad_norm;
    if (!PyArg_ParseTuple(args, "OO", &loss, &grad_norm)) return NULL;
    if (!counts(self)) Py_RETURN_NONE;
    return none_or_fail(self->guard, ended_by_hand(self, loss, grad_norm));
}

static PyObject *Steps_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"writer", "guard", "skipped_flag", "by_hand_flag", NULL};
    PyObject *writer, *guard;
    int skipped_flag, by_hand_flag;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOii", names, &writer, &guard, &skipped_flag, &by_hand_flag))
        return NULL;
    Steps *self = (Steps *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF(guard);
    self->guard = guard;
    self->skipped_flag = skipped_flag;
    self->by_hand_flag = by_hand_flag;
    self->enabled = 1;
    self->end_step = PyObject_GetAttrString(writer, "end_step");
    self->add_microstep = PyObject_GetAttrString(writer, "add_microstep");
    self->set_loss = PyObject_GetAttrString(writer, "set_loss");
    if (self->end_step == NULL || self->add_microstep == NULL || self->set_loss == NULL) Py_CLEAR(self);
    return (PyObject *)self;
}

static void release(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF((PyObject *)type);
}

static void Steps_dealloc(Steps *self) {
    forget_values(self);
    Py_XDECREF(self->end_step);
    Py_XDECREF(self->add_microstep);
    Py_XDECREF(self->set_loss);
    Py_XDECREF(self->guard);
    PyMem_Free(self->stepped);
    release((PyObject *)self);
}

static PyMemberDef Steps_members[] = {
    {"enabled", T_BOOL, offsetof(Steps, enabled), 0, NULL},
    {"_end_step", T_OBJECT_EX, offsetof(Steps, end_step), 0, NULL},
    {"_add_microstep", T_OBJECT_EX, offsetof(Steps, add_microstep), 0, NULL},
    {"_set_loss", T_OBJECT_EX, offsetof(Steps, set_loss), 0, NULL},
    {"by_hand", T_BOOL, offsetof(Steps, by_hand), READONLY, NULL},
    {"optimizer_calls", T_LONGLONG, offsetof(Steps, optimizer_calls), READONLY, NULL},
    {"step", T_LONGLONG, offsetof(Steps, step), 0, NULL},
    {"calls", T_LONGLONG, offsetof(Steps, calls), READONLY, NULL},
    {"cost_ns", T_LONGLONG, offsetof(Steps, cost_ns), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
#define FAST(function) ((PyCFunction)(void (*)(void))function)
static PyMethodDef Steps_methods[] = {
    {"on_backward", (PyCFunction)Steps_on_backward, METH_NOARGS, NULL},
    {"on_loss", (PyCFunction)Steps_on_loss, METH_O, NULL},
    {"on_grad_norm", (PyCFunction)Steps_on_grad_norm, METH_O, NULL},
    {"on_optimizer_step", FAST(Steps_on_optimizer_step), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"end_by_hand", (PyCFunction)Steps_end_by_hand, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot Steps_slots[] = {
    {Py_tp_doc, "Decides when a step ends; see steps.StepCounter for what the methods mean."},
    {Py_tp_new, Steps_new},
    {Py_tp_dealloc, Steps_dealloc},
    {Py_tp_methods, Steps_methods},
    {Py_tp_members, Steps_members},
    {0, NULL},
};
static PyType_Spec Steps_spec = {"whichrank.instrumentation._steps.StepCounter", sizeof(Steps), 0, Py_TPFLAGS_DEFAULT,
                                 Steps_slots};

/* --- ScalarReader ------------------------------------------------------------------------------------------------ */
typedef struct {
    PyObject_HEAD
    PyObject *deliver, *guard;
    PyObject *tensor_type, *numel, *is_neg, *data_ptr; /* torch.Tensor and some of its methods */
    PyObject *float32, *float64;
} Reader;

/* A method without arguments; *truth: its result as a number. -1: an exception is set. */
static int ask(PyObject *method, PyObject *value, unsigned long long *truth) {
    PyObject *result = PyObject_CallFunctionObjArgs(method, value, NULL);
    if (result == NULL) return -1;
    *truth = PyLong_AsUnsignedLongLong(result);
    Py_DECREF(result);
    return *truth == (unsigned long long)-1 && PyErr_Occurred() ? -1 : 0;
}

/* 1: read here. 0: one for read_other. -1: an exception is set. */
static int read_usual(Reader *self, PyObject *value) {
    if ((PyObject *)Py_TYPE(value) != self->tensor_type) return 0;
    PyObject *is_cpu = PyObject_GetAttr(value, s_is_cpu);
    if (is_cpu == NULL) return -1;
    Py_DECREF(is_cpu); /* True and False are never gone */
    if (is_cpu != Py_True) return 0;
    PyObject *dtype = PyObject_GetAttr(value, s_dtype);
    if (dtype == NULL) return -1;
    Py_DECREF(dtype); /* torch keeps it */
    if (dtype != self->float32 && dtype != self->float64) return 0;
    unsigned long long elements, negative, address;
    if (ask(self->numel, value, &elements)) return -1;
    if (elements != 1) return 0;
    /* A view that negates when it is read by an operation. */
    if (ask(self->is_neg, value, &negative)) return -1;
    if (negative) return 0;
    /* Not item(): that goes through torch's dispatcher, which costs 2 us more here, and which somebody's mode sees. */
    if (ask(self->data_ptr, value, &address)) return -1;
    if (address == 0) return 0;
    double number;
    if (dtype == self->float32) {
        float single;
        memcpy(&single, (const void *)(uintptr_t)address, sizeof single);
        number = single;
    } else {
        memcpy(&number, (const void *)(uintptr_t)address, sizeof number);
    }
    PyObject *delivered = PyFloat_FromDouble(number);
    if (delivered == NULL) return -1;
    int status = call(self->deliver, delivered);
    Py_DECREF(delivered);
    return status ? -1 : 1;
}

static PyObject *Reader_read(Reader *self, PyObject *value) {
    if (!is_enabled(self->guard)) Py_RETURN_NONE;
    int status = read_usual(self, value);
    if (status == 0) return PyObject_CallMethodObjArgs((PyObject *)self, s_read_other, value, NULL);
    return none_or_fail(self->guard, status < 0);
}

static PyObject *Reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"deliver", "guard", "tensor_type", "float32", "float64", NULL};
    PyObject *deliver, *guard, *tensor_type, *float32, *float64;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO", names, &deliver, &guard, &tensor_type, &float32, &float64))
        return NULL;
    Reader *self = (Reader *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF(deliver);
    Py_INCREF(guard);
    Py_INCREF(tensor_type);
    Py_INCREF(float32);
    Py_INCREF(float64);
    self->deliver = deliver;
    self->guard = guard;
    self->tensor_type = tensor_type;
    self->float32 = float32;
    self->float64 = float64;
    self->numel = PyObject_GetAttrString(tensor_type, "numel");
    self->is_neg = PyObject_GetAttrString(tensor_type, "is_neg");
    self->data_ptr = PyObject_GetAttrString(tensor_type, "data_ptr");
    if (self->numel == NULL || self->is_neg == NULL || self->data_ptr == NULL) Py_CLEAR(self);
    return (PyObject *)self;
}

static void Reader_dealloc(Reader *self) {
    Py_XDECREF(self->deliver);
    Py_XDECREF(self->guard);
    Py_XDECREF(self->tensor_type);
    Py_XDECREF(self->float32);
    Py_XDECREF(self->float64);
    Py_XDECREF(self->numel);
    Py_XDECREF(self->is_neg);
    Py_XDECREF(self->data_ptr);
    release((PyObject *)self);
}

static PyMemberDef Reader_members[] = {
    {"_deliver", T_OBJECT_EX, offsetof(Reader, deliver), READONLY, NULL},
    {"_guard", T_OBJECT_EX, offsetof(Reader, guard), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef Reader_methods[] = {
    {"read", (PyCFunction)Reader_read, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot Reader_slots[] = {
    {Py_tp_doc, "Reads plain float scalars on the CPU; its Python subclass reads the others (loss.py)."},
    {Py_tp_new, Reader_new},
    {Py_tp_dealloc, Reader_dealloc},
    {Py_tp_methods, Reader_methods},
    {Py_tp_members, Reader_members},
    {0, NULL},
};
static PyType_Spec Reader_spec = {"whichrank.instrumentation._steps.ScalarReader", sizeof(Reader), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, Reader_slots};

/* --- OptimizerEdges ---------------------------------------------------------------------------------------------- */
typedef struct {
    uintptr_t optimizer;
    PyObject *entry; /* what the tracker's enter returned */
} Entered;

typedef struct {
    PyObject_HEAD
    PyObject *tracker, *enter, *leave, *on_step, *poll, *open_operations, *guard;
    PyObject *enter_arguments, *enter_names;
    unsigned long main_thread;
    int depth;
    Entered stack[MAX_NESTED];
} Edges;

static void cut(Edges *self, int depth) {
    while (self->depth > depth) Py_CLEAR(self->stack[--self->depth].entry);
}

static int find(Edges *self, PyObject *optimizer) {
    for (int i = self->depth - 1; i >= 0; i--)
        if (self->stack[i].optimizer == (uintptr_t)optimizer) return i;
    return -1;
}

static int begin(Edges *self, PyObject *optimizer) {
    Py_ssize_t open = PyObject_Size(self->open_operations);
    if (open < 0) return -1;
    if (open) {
        PyObject *result = PyObject_CallFunctionObjArgs(self->poll, NULL);
        if (result == NULL) return -1;
        Py_DECREF(result);
    }
    if (self->depth) {
        int known = find(self, optimizer);
        if (known >= 0) { /* its last step raised */
            if (call(self->leave, self->stack[known].entry)) return -1;
            cut(self, known);
        }
        if (self->depth == MAX_NESTED) cut(self, 0);
    }
    PyObject *entry = PyObject_Call(self->enter, self->enter_arguments, self->enter_names);
    if (entry == NULL) return -1;
    self->stack[self->depth++] = (Entered){(uintptr_t)optimizer, entry};
    return 0;
}

static int end(Edges *self, PyObject *optimizer) {
    int known = find(self, optimizer);
    if (known < 0) return 0;
    PyObject *entry = self->stack[known].entry;
    self->stack[known].entry = NULL;
    cut(self, known);
    int status = call(self->on_step, optimizer) || call(self->leave, entry) ? -1 : 0;
    Py_DECREF(entry);
    return status;
}

static PyObject *Edges_begin(Edges *self, PyObject *optimizer) {
    if (PyThread_get_thread_ident() != self->main_thread || !is_enabled(self->guard) || !is_enabled(self->tracker))
        Py_RETURN_NONE;
    return none_or_fail(self->guard, begin(self, optimizer));
}

static PyObject *Edges_end(Edges *self, PyObject *optimizer) {
    if (!self->depth || PyThread_get_thread_ident() != self->main_thread || !is_enabled(self->guard)) Py_RETURN_NONE;
    return none_or_fail(self->guard, end(self, optimizer));
}

static PyObject *Edges_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"tracker", "on_step", "poll", "open_operations", "guard", "main_thread", "phase", NULL};
    PyObject *tracker, *on_step, *poll, *open_operations, *guard;
    unsigned long main_thread;
    int phase;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOki", names, &tracker, &on_step, &poll, &open_operations, &guard,
                                     &main_thread, &phase))
        return NULL;
    Edges *self = (Edges *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    PyObject *owned[] = {tracker, on_step, poll, open_operations, guard};
    PyObject **places[] = {&self->tracker, &self->on_step, &self->poll, &self->open_operations, &self->guard};
    for (int i = 0; i < 5; i++) {
        Py_INCREF(owned[i]);
        *places[i] = owned[i];
    }
    self->main_thread = main_thread;
    self->enter = PyObject_GetAttrString(tracker, "enter");
    self->leave = PyObject_GetAttrString(tracker, "leave");
    self->enter_arguments = Py_BuildValue("(i)", phase);
    self->enter_names = Py_BuildValue("{O:O}", s_left_open, Py_True);
    if (self->enter == NULL || self->leave == NULL || self->enter_arguments == NULL || self->enter_names == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void Edges_dealloc(Edges *self) {
    cut(self, 0);
    PyObject *owned[] = {self->tracker, self->enter, self->leave, self->on_step,         self->poll,
                         self->open_operations, self->guard, self->enter_arguments, self->enter_names};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) Py_XDECREF(owned[i]);
    release((PyObject *)self);
}

static PyMethodDef Edges_methods[] = {
    {"begin", (PyCFunction)Edges_begin, METH_O, NULL},
    {"end", (PyCFunction)Edges_end, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot Edges_slots[] = {
    {Py_tp_doc, "Begin and end of an optimizer's step; see optimizer_edges.OptimizerEdges."},
    {Py_tp_new, Edges_new},
    {Py_tp_dealloc, Edges_dealloc},
    {Py_tp_methods, Edges_methods},
    {0, NULL},
};
static PyType_Spec Edges_spec = {"whichrank.instrumentation._steps.OptimizerEdges", sizeof(Edges), 0,
                                 Py_TPFLAGS_DEFAULT, Edges_slots};

/* --- module ------------------------------------------------------------------------------------------------------ */
static struct PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "_steps",
                                               "Steps, losses and optimizers in C; see the head of _steps.c.", -1, NULL,
                                               NULL, NULL, NULL, NULL};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec) {
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL || PyModule_AddObject(module, name, type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    return 0;
}

PyMODINIT_FUNC PyInit__steps(void) {
    static const struct {
        PyObject **place;
        const char *text;
    } strings[] = {{&s_enabled, "enabled"}, {&s_fail, "fail"},
                   {&s_skipped, "skipped"}, {&s_is_cpu, "is_cpu"},
                   {&s_read_other, "read_other"}, {&s_left_open, "left_open"},
                   {&s_dtype, "dtype"}};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        if (*strings[i].place == NULL && (*strings[i].place = PyUnicode_InternFromString(strings[i].text)) == NULL)
            return NULL;
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL) return NULL;
    if (add_type(module, "StepCounter", &Steps_spec) || add_type(module, "ScalarReader", &Reader_spec) ||
        add_type(module, "OptimizerEdges", &Edges_spec))
        Py_CLEAR(module);
    return module;
}
