/* Packed rows of a table back into rows, on CPython's stable ABI (3.10). See packed_rows.py, which does the same; tests
 * hold both to the same answers. Nothing here is sized by a number that came, but within the limit that the caller gives.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire_fields.h"

enum { BITS = 1, OF_ROW = 2, OF_PERIOD = 4, OF_COLUMN = 8, CHAINED = 16, ALL_CODES = 31, ZEROS = 32, MORE_ZEROS = 31 };
enum { MAX_COLUMNS = 128, UID_BYTES = 8 };

static int read_byte(Span *from, uint8_t *value) {
    if (from->at >= from->end) {
        return 0;
    }
    *value = *from->at++;
    return 1;
}

/* A number of 64 bits, two's complement. */
static int read_signed(Span *from, uint64_t *value) {
    uint64_t zigzag;
    if (!read_varint(from, &zigzag)) {
        return 0;
    }
    *value = (zigzag >> 1) ^ (0 - (zigzag & 1));
    return 1;
}

/* `count` numbers of `width` bits each, low bits first, added to `words`. 0: there are not so many. */
static int add_bits(Span *from, uint64_t *words, uint64_t count, unsigned shift, unsigned width) {
    uint64_t size = (count * width + 7) / 8; /* count is within the limit, so this does not overflow */
    if (size > (uint64_t)(from->end - from->at)) {
        return 0;
    }
    uint64_t bit = 0, i = 0;
    if (width <= 57) { /* eight bytes hold it, wherever in a byte it begins */
        uint64_t mask = ((uint64_t)1 << width) - 1;
        for (; i < count && (bit >> 3) + 8 <= (uint64_t)(from->end - from->at); i++, bit += width) {
            const uint8_t *at = from->at + (bit >> 3);
            uint64_t eight = (uint64_t)at[0] | (uint64_t)at[1] << 8 | (uint64_t)at[2] << 16 | (uint64_t)at[3] << 24 |
                             (uint64_t)at[4] << 32 | (uint64_t)at[5] << 40 | (uint64_t)at[6] << 48 |
                             (uint64_t)at[7] << 56;
            words[i] += ((eight >> (bit & 7)) & mask) << shift;
        }
    }
    for (; i < count; i++) {
        uint64_t value = 0;
        for (unsigned have = 0; have < width;) {
            unsigned skip = (unsigned)(bit & 7), take = 8 - skip;
            if (take > width - have) {
                take = width - have;
            }
            uint64_t part = (uint64_t)(from->at[bit >> 3] >> skip) & ((1u << take) - 1);
            value |= part << have;
            have += take;
            bit += take;
        }
        words[i] += value << shift;
    }
    from->at += size;
    return 1;
}

/* One column into `words`, which hold the column before. zeros: of how many columns it is known that they are 0.
 * 0: it cannot be read. */
static int read_column(Span *from, uint64_t *words, uint64_t *own, uint64_t count, uint64_t period, uint8_t *zeros) {
    uint8_t code, shift = 0, width;
    uint64_t least;
    if (!*zeros) {
        if (!read_byte(from, &code) || code > (ZEROS | MORE_ZEROS)) {
            return 0;
        }
        *zeros = code & ZEROS ? (code & MORE_ZEROS) + 1 : 0;
    }
    if (*zeros) {
        --*zeros;
        memset(words, 0, sizeof(uint64_t) * (size_t)count);
        return 1;
    }
    if ((code & (OF_ROW | OF_PERIOD)) == (OF_ROW | OF_PERIOD) ||
        (code & CHAINED && (!read_byte(from, &shift) || shift > 63))) {
        return 0;
    }
    uint64_t lag = code & OF_ROW ? 1 : code & OF_PERIOD ? period : 0;
    if (lag > count) {
        lag = count;
    }
    for (uint64_t i = 0; i < lag; i++) {
        if (!read_signed(from, own + i)) {
            return 0;
        }
        own[i] = (own[i] << shift) + (i && code & CHAINED ? own[i - 1] : 0);
    }
    if (!read_signed(from, &least)) {
        return 0;
    }
    for (uint64_t i = lag; i < count; i++) {
        own[i] = least << shift;
    }
    if (code & BITS) {
        if ((!(code & CHAINED) && !read_byte(from, &shift)) || !read_byte(from, &width) || shift > 63 || width < 1 ||
            width > 64 || shift + width > 64 || !add_bits(from, own + lag, count - lag, shift, width)) {
            return 0;
        }
    }
    for (uint64_t i = lag; lag && i < count; i++) {
        own[i] += own[i - lag];
    }
    for (uint64_t i = 0; i < count; i++) {
        words[i] = code & OF_COLUMN ? words[i] + own[i] : own[i];
    }
    return 1;
}

static int read_rows(Span from, const uint8_t *layout, Py_ssize_t known, const char *unknown, Py_ssize_t row_bytes,
                     uint64_t count, uint64_t period, uint64_t columns, uint64_t *words, char *rows) {
    for (uint64_t i = 0; i < count; i++) {
        memcpy(rows + i * (size_t)row_bytes, unknown, (size_t)row_bytes);
        words[i] = 0;
    }
    uint8_t zeros = 0;
    for (uint64_t column = 0; column < columns; column++) {
        if (!read_column(&from, words, words + count, count, period, &zeros)) {
            return 0;
        }
        if ((Py_ssize_t)column >= known) { /* of a newer release */
            continue;
        }
        const uint8_t *where = layout + 3 * column;
        size_t place = (size_t)where[0] | (size_t)where[1] << 8, size = where[2];
        if (place + size > (size_t)row_bytes || size > 8) {
            return 0;
        }
        for (uint64_t i = 0; i < count; i++) {
            char *to = rows + i * (size_t)row_bytes + place;
            for (size_t byte = 0; byte < size; byte++) { /* little-endian, whatever the machine is */
                to[byte] = (char)(words[i] >> (8 * byte));
            }
        }
    }
    return from.at == from.end && !zeros;
}

PyDoc_STRVAR(unpack_doc, "unpack(content, layout, unknown, limit)\n--\n\nSee packed_rows.unpack_by_columns.");

/* New bytes of rows, None for what is not packed rows; NULL: there is no memory. */
static PyObject *unpacked(Span from, const char *layout, Py_ssize_t layout_bytes, const char *unknown,
                          Py_ssize_t row_bytes, Py_ssize_t limit) {
    uint64_t count, period, columns;
    if (!read_varint(&from, &count) || !read_varint(&from, &period) || !read_varint(&from, &columns) || limit < 0 ||
        count > (uint64_t)limit || period < 1 || period > 255 || columns > MAX_COLUMNS || count > (1u << 24)) {
        Py_RETURN_NONE;
    }
    PyObject *rows = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * row_bytes);
    uint64_t *words = malloc(2 * sizeof(uint64_t) * (size_t)(count ? count : 1));
    if (rows == NULL || words == NULL) {
        Py_XDECREF(rows);
        free(words);
        return PyErr_NoMemory();
    }
    int is_whole = read_rows(from, (const uint8_t *)layout, layout_bytes / 3, unknown, row_bytes, count, period, columns,
                             words, PyBytes_AsString(rows));
    free(words);
    if (!is_whole) {
        Py_DECREF(rows);
        Py_RETURN_NONE;
    }
    return rows;
}

static PyObject *unpack(PyObject *self, PyObject *args) {
    (void)self;
    const char *content, *layout, *unknown;
    Py_ssize_t size, layout_bytes, row_bytes, limit;
    if (!PyArg_ParseTuple(args, "y#y#y#n", &content, &size, &layout, &layout_bytes, &unknown, &row_bytes, &limit)) {
        return NULL;
    }
    Span from = {(const uint8_t *)content, (const uint8_t *)content + size};
    return unpacked(from, layout, layout_bytes, unknown, row_bytes, limit);
}

/* A list of (name, rows as bytes) of the tables, None for what is no packed rows; NULL: an error. highest: of the
 * numbers of those that are known. */
static PyObject *tables_of(Span from, PyObject *known, Py_ssize_t most_rows, Py_ssize_t more_rows, int *highest) {
    PyObject *found = PyList_New(0);
    while (found != NULL && from.at < from.end) {
        uint8_t number;
        uint64_t bytes;
        if (!read_byte(&from, &number) || !read_varint(&from, &bytes) || bytes > (uint64_t)(from.end - from.at)) {
            Py_DECREF(found);
            Py_RETURN_NONE;
        }
        Span table = {from.at, from.at + bytes};
        from.at += bytes;
        if (number >= PySequence_Size(known)) { /* of a newer release */
            continue;
        }
        *highest = number > *highest ? number : *highest;
        PyObject *of = PySequence_GetItem(known, number), *name, *pair = NULL;
        const char *layout, *unknown;
        Py_ssize_t layout_bytes, row_bytes;
        if (of != NULL && PyArg_ParseTuple(of, "Oy#y#", &name, &layout, &layout_bytes, &unknown, &row_bytes)) {
            Py_ssize_t limit = (Py_ssize_t)bytes + more_rows < most_rows ? (Py_ssize_t)bytes + more_rows : most_rows;
            PyObject *rows = unpacked(table, layout, layout_bytes, unknown, row_bytes, limit);
            if (rows == Py_None) {
                Py_DECREF(rows);
                Py_DECREF(of);
                Py_DECREF(found);
                Py_RETURN_NONE;
            }
            if (rows != NULL) {
                pair = Py_BuildValue("(ON)", name, rows);
            }
        }
        if (pair == NULL || PyList_Append(found, pair) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(pair);
        Py_XDECREF(of);
    }
    return found;
}

PyDoc_STRVAR(unpack_flush_doc,
             "unpack_flush(body, version, most_uids, known, most_rows, more_rows)\n--\n\nSee packed_flush.flush_by_python.");

static PyObject *unpack_flush(PyObject *self, PyObject *args) {
    (void)self;
    const char *content;
    Py_ssize_t size, most_uids, most_rows, more_rows;
    int version;
    PyObject *known;
    if (!PyArg_ParseTuple(args, "y#inOnn", &content, &size, &version, &most_uids, &known, &most_rows, &more_rows)) {
        return NULL;
    }
    Span from = {(const uint8_t *)content, (const uint8_t *)content + size};
    uint8_t written;
    uint64_t offset_ns, count;
    if (!read_byte(&from, &written) || written != version || !read_signed(&from, &offset_ns) ||
        !read_varint(&from, &count) || count > (uint64_t)most_uids || UID_BYTES * count > (uint64_t)(from.end - from.at)) {
        Py_RETURN_NONE;
    }
    const char *uids = (const char *)from.at;
    from.at += UID_BYTES * count;
    int highest = 0;
    PyObject *tables = tables_of(from, known, most_rows, more_rows, &highest);
    if (tables == NULL || tables == Py_None) {
        return tables;
    }
    return Py_BuildValue("(Ly#Ni)", (long long)offset_ns, uids, (Py_ssize_t)(UID_BYTES * count), tables, highest);
}

static PyMethodDef methods[] = {
    {"unpack", unpack, METH_VARARGS, unpack_doc},
    {"unpack_flush", unpack_flush, METH_VARARGS, unpack_flush_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_packed_rows", "Packed rows of tables.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__packed_rows(void) { return PyModuleDef_Init(&module); }
