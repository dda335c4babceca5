/* The last note of a dying process: which signal, when, and who sent it.
 *
 * Runs inside signal handlers: async-signal-safe calls only (clock_gettime, getpid, sigaction, a raw system call) and
 * stores into a page that was mapped beforehand. The outcome stays what it was without us: the previous disposition is
 * put back and the same signal is delivered again, so exit status, core dump and faulthandler's traceback are the same.
 * A forked child inherits the handlers and writes nothing. Stable ABI of Python 3.10; the offsets are handed in.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const int FATAL[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM};
#define FATAL_COUNT ((int)(sizeof(FATAL) / sizeof(FATAL[0])))

/* Four 64-bit words: signal number, CLOCK_MONOTONIC nanoseconds, pid and uid of the sender. */
static volatile uint64_t *note = NULL;
static pid_t owner = 0;
static struct sigaction previous[FATAL_COUNT];
static int installed[FATAL_COUNT];

static void on_fatal(int number, siginfo_t *info, void *context) {
    int saved_errno = errno;
    int index;
    int sent = info == NULL || info->si_code <= 0; /* by a process, not by a faulting instruction */
    (void)context;
    if (note != NULL && getpid() == owner && note[0] == 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        note[1] = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        if (sent && info != NULL) {
            note[2] = (uint64_t)info->si_pid;
            note[3] = (uint64_t)info->si_uid;
        }
        __atomic_thread_fence(__ATOMIC_RELEASE);
        note[0] = (uint64_t)number; /* last: a reader that sees it sees the rest */
    }
    for (index = 0; index < FATAL_COUNT; index++)
        if (FATAL[index] == number) {
            sigaction(number, &previous[index], NULL);
            installed[index] = 0;
        }
    /* The signal is blocked until this handler returns; then what is pending meets the previous disposition. A faulting
     * instruction simply runs again. */
    if (sent || number == SIGABRT || number == SIGTERM) {
        long sent_again = -1;
#ifdef SYS_rt_tgsigqueueinfo
        if (info != NULL) /* with the sender's data, for whoever is asked next */
            sent_again = syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)syscall(SYS_gettid), number, info);
#endif
        if (sent_again != 0)
            raise(number);
    }
    errno = saved_errno;
}

/* install(path, note_offset, signals) -> list of signal numbers that are now watched. */
static PyObject *install(PyObject *module, PyObject *arguments) {
    PyObject *path = NULL, *wanted, *watched;
    Py_ssize_t offset, position;
    struct stat status;
    int file, index;
    char *mapping;
    size_t length;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O&nO", PyUnicode_FSConverter, &path, &offset, &wanted))
        return NULL;
    if (note != NULL) {
        Py_DECREF(path);
        PyErr_SetString(PyExc_RuntimeError, "already installed");
        return NULL;
    }
    /* Never closed: closing any descriptor of the ring would drop the lock that says this process lives. */
    file = open(PyBytes_AsString(path), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) {
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
        Py_DECREF(path);
        return NULL;
    }
    Py_DECREF(path);
    if (fstat(file, &status) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (offset < 0 || offset % 8 != 0 || (off_t)offset + 32 > status.st_size) {
        PyErr_SetString(PyExc_ValueError, "the note lies outside of the ring");
        return NULL;
    }
    length = (size_t)status.st_size;
    mapping = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapping == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    owner = getpid();
    note = (volatile uint64_t *)(mapping + offset);
    watched = PyList_New(0);
    if (watched == NULL)
        return NULL;
    for (index = 0; index < FATAL_COUNT; index++) {
        struct sigaction current, ours;
        int is_wanted = 0;
        PyObject *number;
        for (position = 0; position < PySequence_Size(wanted); position++) {
            PyObject *item = PySequence_GetItem(wanted, position);
            long value = item == NULL ? -1 : PyLong_AsLong(item);
            Py_XDECREF(item);
            if (PyErr_Occurred()) {
                Py_DECREF(watched);
                return NULL;
            }
            is_wanted |= value == FATAL[index];
        }
        if (!is_wanted || sigaction(FATAL[index], NULL, &current) != 0)
            continue;
        if (!(current.sa_flags & SA_SIGINFO) && current.sa_handler == SIG_IGN)
            continue;
        /* SIGTERM has handlers of its own in many programs; the others may have faulthandler's, which is asked next. */
        if (FATAL[index] == SIGTERM && ((current.sa_flags & SA_SIGINFO) || current.sa_handler != SIG_DFL))
            continue;
        memset(&ours, 0, sizeof ours);
        ours.sa_sigaction = on_fatal;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&ours.sa_mask);
        previous[index] = current;
        if (sigaction(FATAL[index], &ours, NULL) != 0)
            continue;
        installed[index] = 1;
        number = PyLong_FromLong(FATAL[index]);
        if (number == NULL || PyList_Append(watched, number) != 0) {
            Py_XDECREF(number);
            Py_DECREF(watched);
            return NULL;
        }
        Py_DECREF(number);
    }
    return watched;
}

/* uninstall(): put the previous dispositions back where ours are still in place. */
static PyObject *uninstall(PyObject *module, PyObject *unused) {
    int index;
    (void)module;
    (void)unused;
    for (index = 0; index < FATAL_COUNT; index++) {
        struct sigaction current;
        if (!installed[index])
            continue;
        installed[index] = 0;
        if (sigaction(FATAL[index], NULL, &current) == 0 && (current.sa_flags & SA_SIGINFO) &&
            current.sa_sigaction == on_fatal)
            sigaction(FATAL[index], &previous[index], NULL);
    }
    note = NULL; /* the page stays mapped and the descriptor open: see install */
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"install", install, METH_VARARGS, "install(path, note_offset, signals) -> watched signal numbers"},
    {"uninstall", uninstall, METH_NOARGS, "Put the previous dispositions back."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_fatal", "Notes fatal signals in the ring (see the C source).", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__fatal(void) { return PyModule_Create(&definition); }
