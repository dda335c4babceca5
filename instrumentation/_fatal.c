/* The last note of a dying process: which signal, when, who sent it, and where the main thread was in Python.
 *
 * Runs inside signal handlers: async-signal-safe calls only (clock_gettime, getpid, sigaction, fstat, read, a raw system
 * call) and stores into pages that were mapped beforehand. The outcome stays what it was without us: the previous disposition is
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

/* The ring as mapped here. */
static char *ring = NULL;
static size_t ring_bytes = 0;

/* Where the main thread was. faulthandler's handler formats a stack without locks, without memory of its own, and
 * whoever holds the GIL; keep_stacks borrows it: it is called as a function and writes into a pipe that is read at once.
 */
static void (*volatile write_traceback)(int) = NULL;
static int traceback_signal = 0;
static int pipe_read = -1, pipe_write = -1;
static struct stat pipe_status;
static volatile uint64_t *stack_words = NULL; /* version, CLOCK_MONOTONIC nanoseconds, bytes of text */
static char *stack_text = NULL;
static size_t stack_max = 0;
static char traceback[1 << 16]; /* as much as a pipe holds */
static char frames[1 << 13];
static char frame[1 << 11];

/* A program may have closed our descriptors and got their numbers for files of its own. */
static int is_our_pipe(int descriptor) {
    struct stat status;
    return fstat(descriptor, &status) == 0 && S_ISFIFO(status.st_mode) && status.st_ino == pipe_status.st_ino &&
           status.st_dev == pipe_status.st_dev;
}

/* The character at *text, decoded where faulthandler wrote it as \xHH, \uHHHH or \UHHHHHHHH; moves on past it. */
static uint32_t next_character(const char **text, const char *end) {
    const char *here = *text;
    uint32_t code = 0;
    int digits = 0, position;
    if (*here == '\\' && here + 1 < end)
        digits = here[1] == 'x' ? 2 : here[1] == 'u' ? 4 : here[1] == 'U' ? 8 : 0;
    if (digits == 0 || here + 2 + digits > end) {
        *text = here + 1;
        return (unsigned char)*here;
    }
    for (position = 2; position < 2 + digits; position++) {
        char digit = here[position];
        uint32_t value;
        if (digit >= '0' && digit <= '9')
            value = (uint32_t)(digit - '0');
        else if (digit >= 'a' && digit <= 'f')
            value = (uint32_t)(digit - 'a') + 10;
        else { /* a backslash of the name itself */
            *text = here + 1;
            return '\\';
        }
        code = code << 4 | value;
    }
    *text = here + 2 + digits;
    return code;
}

/* Append a name to frame in UTF-8, as one word of a line: no tab, no newline. Returns the new length. */
static size_t append_name(size_t length, const char *text, const char *end) {
    while (text < end && length + 4 < sizeof frame) {
        uint32_t code = next_character(&text, end);
        if (code < 0x20)
            frame[length++] = ' ';
        else if (code < 0x80)
            frame[length++] = (char)code;
        else if (code < 0x800) {
            frame[length++] = (char)(0xC0 | code >> 6);
            frame[length++] = (char)(0x80 | (code & 0x3F));
        } else if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) /* bytes of a name that is no text */
            frame[length++] = '?';
        else if (code < 0x10000) {
            frame[length++] = (char)(0xE0 | code >> 12);
            frame[length++] = (char)(0x80 | (code >> 6 & 0x3F));
            frame[length++] = (char)(0x80 | (code & 0x3F));
        } else {
            frame[length++] = (char)(0xF0 | code >> 18);
            frame[length++] = (char)(0x80 | (code >> 12 & 0x3F));
            frame[length++] = (char)(0x80 | (code >> 6 & 0x3F));
            frame[length++] = (char)(0x80 | (code & 0x3F));
        }
    }
    return length;
}

/* `  File "NAME", line N in FUNCTION` -> `NAME\tN\tFUNCTION\n` in frame. Returns its length, 0 for any other line. */
static size_t format_frame(const char *line, const char *end) {
    static const char OPENS[] = "  File \"", NUMBER[] = "\", line ", FUNCTION[] = " in ";
    const char *name_end, *number, *number_end;
    size_t length;
    if ((size_t)(end - line) < sizeof OPENS - 1 || memcmp(line, OPENS, sizeof OPENS - 1) != 0)
        return 0;
    line += sizeof OPENS - 1;
    for (name_end = end - (sizeof NUMBER - 1);; name_end--) { /* from the right: a name may contain anything */
        if (name_end < line)
            return 0;
        if (memcmp(name_end, NUMBER, sizeof NUMBER - 1) == 0)
            break;
    }
    number = number_end = name_end + sizeof NUMBER - 1;
    while (number_end < end && *number_end >= '0' && *number_end <= '9')
        number_end++;
    if (number_end == number || number_end - number > 10 || (size_t)(end - number_end) < sizeof FUNCTION - 1 ||
        memcmp(number_end, FUNCTION, sizeof FUNCTION - 1) != 0)
        return 0;
    /* At most 500 characters each, says faulthandler; four bytes each are never needed for real names. */
    length = append_name(0, line, name_end);
    if (length + 16 > sizeof frame)
        return 0;
    frame[length++] = '\t';
    memcpy(frame + length, number, (size_t)(number_end - number));
    length += (size_t)(number_end - number);
    frame[length++] = '\t';
    length = append_name(length, number_end + sizeof FUNCTION - 1, end);
    frame[length++] = '\n'; /* append_name leaves room */
    return length;
}

/* Into the ring, innermost last as everywhere in it; the outermost are left out where there is no room. */
static void keep_main_stack(uint64_t now_ns) {
    size_t length = 0, start = sizeof frames, room;
    const char *line, *end;
    /* Py_IsInitialized: a single load. Once the interpreter is being taken down, faulthandler's tables are gone. */
    if (write_traceback == NULL || !Py_IsInitialized() || syscall(SYS_gettid) != (long)getpid())
        return;
    if (!is_our_pipe(pipe_read) || !is_our_pipe(pipe_write))
        return;
    write_traceback(traceback_signal);
    while (length < sizeof traceback) {
        ssize_t got = read(pipe_read, traceback + length, sizeof traceback - length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    room = stack_max < sizeof frames ? stack_max : sizeof frames;
    for (line = traceback; line < traceback + length; line = end + 1) {
        size_t size;
        for (end = line; end < traceback + length && *end != '\n'; end++)
            ;
        size = format_frame(line, end);
        if (size > room)
            break;
        room -= size;
        start -= size;
        memcpy(frames + start, frame, size);
    }
    if (start == sizeof frames)
        return;
    /* The heartbeat thread writes here too, when a phase is long: ours goes on top. */
    stack_words[0] |= 1;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    stack_words[1] = now_ns;
    stack_words[2] = sizeof frames - start;
    memcpy(stack_text, frames + start, sizeof frames - start);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    stack_words[0] += 1;
}

static int is_default(const struct sigaction *action) {
    return !(action->sa_flags & SA_SIGINFO) && action->sa_handler == SIG_DFL;
}

static void on_fatal(int number, siginfo_t *info, void *context) {
    int saved_errno = errno;
    int index;
    int sent = info == NULL || info->si_code <= 0; /* by a process, not by a faulting instruction */
    (void)context;
    if (note != NULL && getpid() == owner && note[0] == 0) {
        struct timespec now;
        uint64_t now_ns;
        clock_gettime(CLOCK_MONOTONIC, &now);
        now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        note[1] = now_ns;
        if (sent && info != NULL) {
            note[2] = (uint64_t)info->si_pid;
            note[3] = (uint64_t)info->si_uid;
        }
        __atomic_thread_fence(__ATOMIC_RELEASE);
        note[0] = (uint64_t)number; /* last: a reader that sees it sees the rest */
        /* Where faulthandler is asked next, memory may be broken: its own traceback must not be lost for ours. */
        for (index = 0; index < FATAL_COUNT; index++)
            if (FATAL[index] == number && is_default(&previous[index]))
                keep_main_stack(now_ns);
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
    ring = mapping;
    ring_bytes = length;
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
        if (FATAL[index] == SIGTERM && !is_default(&current))
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

/* unused_signal() -> number of a real-time signal that has no handler. */
static PyObject *unused_signal(PyObject *module, PyObject *unused) {
    int number;
    (void)module;
    (void)unused;
    for (number = SIGRTMAX; number >= SIGRTMIN; number--) {
        struct sigaction current;
        if (sigaction(number, NULL, &current) == 0 && is_default(&current))
            return PyLong_FromLong(number);
    }
    PyErr_SetString(PyExc_ValueError, "every real-time signal has a handler");
    return NULL;
}

/* keep_stacks(signal, pipe_read, pipe_write, words_offset, text_offset, text_max): from now on the main thread's stack
 * is kept too. faulthandler is registered for the signal and writes to the pipe; the signal itself gets its default
 * disposition back. */
static PyObject *keep_stacks(PyObject *module, PyObject *arguments) {
    int number, read_end, write_end;
    Py_ssize_t words_offset, text_offset, text_max;
    struct sigaction current;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "iiinnn", &number, &read_end, &write_end, &words_offset, &text_offset, &text_max))
        return NULL;
    if (note == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "not installed");
        return NULL;
    }
    if (words_offset < 0 || words_offset % 8 != 0 || text_offset < words_offset + 24 || text_max < 0 ||
        (size_t)text_offset > ring_bytes || (size_t)text_max > ring_bytes - (size_t)text_offset) {
        PyErr_SetString(PyExc_ValueError, "the stack lies outside of the ring");
        return NULL;
    }
    if (fstat(write_end, &pipe_status) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (!is_our_pipe(read_end) || !is_our_pipe(write_end)) {
        PyErr_SetString(PyExc_ValueError, "these are not the two ends of one pipe");
        return NULL;
    }
    if (sigaction(number, NULL, &current) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if ((current.sa_flags & SA_SIGINFO) || current.sa_handler == SIG_DFL || current.sa_handler == SIG_IGN) {
        PyErr_SetString(PyExc_ValueError, "faulthandler is not registered for this signal");
        return NULL;
    }
    stack_words = (volatile uint64_t *)(ring + words_offset);
    stack_text = ring + text_offset;
    stack_max = (size_t)text_max;
    pipe_read = read_end;
    pipe_write = write_end;
    traceback_signal = number;
    write_traceback = current.sa_handler;
    memset(&current, 0, sizeof current);
    current.sa_handler = SIG_DFL;
    sigemptyset(&current.sa_mask);
    if (sigaction(number, &current, NULL) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* uninstall() -> whether the signal of keep_stacks still has no handler. Puts the previous dispositions back where ours
 * are still in place. */
static PyObject *uninstall(PyObject *module, PyObject *unused) {
    struct sigaction current;
    int index;
    (void)module;
    (void)unused;
    for (index = 0; index < FATAL_COUNT; index++) {
        if (!installed[index])
            continue;
        installed[index] = 0;
        if (sigaction(FATAL[index], NULL, &current) == 0 && (current.sa_flags & SA_SIGINFO) &&
            current.sa_sigaction == on_fatal)
            sigaction(FATAL[index], &previous[index], NULL);
    }
    write_traceback = NULL;
    note = NULL; /* the pages stay mapped and the descriptor open: see install */
    return PyBool_FromLong(traceback_signal != 0 && sigaction(traceback_signal, NULL, &current) == 0 &&
                           is_default(&current));
}

static PyMethodDef methods[] = {
    {"install", install, METH_VARARGS, "install(path, note_offset, signals) -> watched signal numbers"},
    {"unused_signal", unused_signal, METH_NOARGS, "A real-time signal without a handler."},
    {"keep_stacks", keep_stacks, METH_VARARGS,
     "keep_stacks(signal, pipe_read, pipe_write, words_offset, text_offset, text_max)"},
    {"uninstall", uninstall, METH_NOARGS, "Put the previous dispositions back."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_fatal", "Notes fatal signals in the ring (see the C source).", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__fatal(void) { return PyModule_Create(&definition); }
