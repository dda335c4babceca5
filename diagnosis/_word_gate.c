/* Where words stand in a block of bytes, on CPython's stable ABI (3.10): word_gate.py's search, in one pass.
 *
 * Every four bytes are hashed into a table of one bit per value; what hits is compared with the words that have these
 * four bytes: their first and last four. Same answers as the Python part, which is used without a compiler; a test holds
 * both to that. The tables are made by word_gate.py.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 4 };
/* What stands before and behind a block. */
#define OUTSIDE 0x20

/* As word_gate.py packs it. */
typedef struct {
    uint32_t gram, first, last;
    int32_t to_first, to_last; /* from the gram, in bytes */
} Word;

typedef struct {
    int64_t *at;
    size_t count, room;
} Found;

static uint32_t little(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, WINDOW);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

static uint32_t read_at(const uint8_t *block, int64_t size, int64_t at, uint32_t fold) {
    if (at >= 0 && at + WINDOW <= size) {
        return little(block + at) | fold;
    }
    uint32_t value = 0;
    for (int byte = 0; byte < WINDOW; byte++) {
        int64_t place = at + byte;
        uint32_t here = place >= 0 && place < size ? block[place] | (fold & 0xFF) : OUTSIDE;
        value |= here << (8 * byte);
    }
    return value;
}

/* Words are sorted by their grams. */
static const Word *first_of(const Word *words, size_t count, uint32_t gram) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (words[middle].gram < gram) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return words + low;
}

static int is_word(const Word *words, size_t count, const uint8_t *block, int64_t size, int64_t at, uint32_t gram,
                   uint32_t fold) {
    const Word *end = words + count;
    for (const Word *word = first_of(words, count, gram); word < end && word->gram == gram; word++) {
        if (read_at(block, size, at + word->to_first, fold) == word->first &&
            read_at(block, size, at + word->to_last, fold) == word->last) {
            return 1;
        }
    }
    return 0;
}

static int add(Found *found, int64_t at) {
    if (found->count == found->room) {
        size_t room = found->room ? 2 * found->room : 1024;
        int64_t *grown = realloc(found->at, room * sizeof *grown);
        if (grown == NULL) {
            return 0;
        }
        found->at = grown;
        found->room = room;
    }
    found->at[found->count++] = at;
    return 1;
}

static int search(const uint8_t *block, int64_t size, uint32_t fold, const uint8_t *bits, uint32_t multiplier, int shift,
                  const Word *words, size_t count, Found *found) {
    for (int64_t at = 0; at + WINDOW <= size; at++) {
        uint32_t gram = little(block + at) | fold;
        uint32_t hash = (gram * multiplier) >> shift;
        if ((bits[hash >> 3] >> (hash & 7)) & 1 && is_word(words, count, block, size, at, gram, fold) &&
            !add(found, at)) {
            return 0;
        }
    }
    return 1;
}

/* positions(block, fold, bits, multiplier, words) -> bytes: int64 each, in order. bits: a power of two of bytes. */
static PyObject *positions(PyObject *self, PyObject *arguments) {
    (void)self;
    const char *block, *bits, *packed;
    Py_ssize_t size, bits_size, packed_size;
    unsigned int fold, multiplier;
    if (!PyArg_ParseTuple(arguments, "y#Iy#Iy#", &block, &size, &fold, &bits, &bits_size, &multiplier, &packed,
                          &packed_size)) {
        return NULL;
    }
    int shift = 32 - 3;
    while (shift > 0 && ((Py_ssize_t)1 << (32 - 3 - shift)) < bits_size) {
        shift--;
    }
    if (((Py_ssize_t)1 << (32 - 3 - shift)) != bits_size || packed_size % (Py_ssize_t)sizeof(Word)) {
        PyErr_SetString(PyExc_ValueError, "these are no tables of a gate");
        return NULL;
    }
    Found found = {NULL, 0, 0};
    int is_done;
    Word *words = malloc((size_t)packed_size + 1);
    if (words == NULL) {
        return PyErr_NoMemory();
    }
    memcpy(words, packed, (size_t)packed_size); /* aligned */
    Py_BEGIN_ALLOW_THREADS
    is_done = search((const uint8_t *)block, size, fold * 0x01010101u, (const uint8_t *)bits, multiplier, shift, words,
                     (size_t)packed_size / sizeof(Word), &found);
    Py_END_ALLOW_THREADS
    free(words);
    PyObject *answer = is_done ? PyBytes_FromStringAndSize((const char *)found.at,
                                                           (Py_ssize_t)(found.count * sizeof *found.at))
                               : PyErr_NoMemory();
    free(found.at);
    return answer;
}

static PyMethodDef METHODS[] = {
    {"positions", positions, METH_VARARGS, "Where words are in a block of bytes, int64 each, in order."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_word_gate", "Where words stand in a block of bytes.", 0, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__word_gate(void) { return PyModuleDef_Init(&MODULE); }
