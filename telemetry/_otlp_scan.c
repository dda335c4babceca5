/* Blocks out of OTLP log requests, on CPython's stable ABI (3.10).
 *
 * A processor reads thousands of messages a second, most of them nothing but blocks; an object of the protobuf library
 * for each attribute is most of what that costs. This knows the shape in which blocks are written, and nothing else:
 * whatever is not surely so (unknown fields, text beyond ASCII, fields twice that protobuf would merge) is left to the
 * protobuf library, which says what is wrong with it. See otlp.py; tests hold both to the same answers.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "wire_fields.h"

/* Field numbers of opentelemetry/proto: collector/logs, logs, common. */
enum { REQUEST_RESOURCE_LOGS = 1 };
enum { RESOURCE_LOGS_RESOURCE = 1, RESOURCE_LOGS_SCOPE_LOGS = 2, RESOURCE_LOGS_SCHEMA_URL = 3 };
enum { SCOPE_LOGS_SCOPE = 1, SCOPE_LOGS_RECORD = 2, SCOPE_LOGS_SCHEMA_URL = 3 };
enum { SCOPE_NAME = 1, SCOPE_VERSION = 2, SCOPE_ATTRIBUTES = 3 };
enum { RECORD_TIME = 1, RECORD_SEVERITY = 2, RECORD_BODY = 5, RECORD_ATTRIBUTES = 6, RECORD_FLAGS = 8 };
enum { RECORD_TRACE_ID = 9, RECORD_SPAN_ID = 10, RECORD_OBSERVED_TIME = 11, RECORD_EVENT_NAME = 12 };
enum { PAIR_KEY = 1, PAIR_VALUE = 2 };
enum { VALUE_STRING = 1, VALUE_BOOL = 2, VALUE_INT = 3, VALUE_BYTES = 7 };

typedef struct {
    Span name, dtype, groups, body;
    uint64_t time_ns;
    int64_t count, offset_ns;
    int has_count;
} Block;

/* What attributes of a block are called, as attributes.py has them. */
static const char COPY[] = "whichrank.copy";
static const char COUNT[] = "whichrank.block.count";
static const char DTYPE[] = "whichrank.block.dtype";
static const char GROUPS[] = "whichrank.block.groups";
static const char CLOCK_OFFSET[] = "whichrank.block.clock_offset_ns";
/* All blocks of a flush in one record, as packed_flush.py has it. */
static const char PACKED[] = "whichrank.packed";

#define IS(span, text) ((size_t)((span).end - (span).at) == sizeof(text) - 1 && !memcmp((span).at, text, sizeof(text) - 1))

static int is_ascii(Span text) {
    uint8_t all = 0;
    while (text.at < text.end) {
        all |= *text.at++;
    }
    return all < 0x80;
}

static int is_one_of(const Field *field, uint32_t number, uint32_t type) {
    return field->number == number && field->type == type;
}

/* A KeyValue whose value is one text, number or nothing of interest. 0: something else. value->number 0: nothing. */
static int read_pair(Span from, Span *key, Field *value) {
    Field field;
    int has_value = 0;
    key->at = key->end = from.at;
    value->number = 0;
    while (from.at < from.end) {
        if (!read_field(&from, &field)) {
            return 0;
        }
        if (is_one_of(&field, PAIR_KEY, BYTES)) {
            *key = field.bytes;
        } else if (is_one_of(&field, PAIR_VALUE, BYTES) && !has_value) {
            has_value = 1;
            Span content = field.bytes;
            if (content.at < content.end && (!read_field(&content, value) || content.at < content.end)) {
                return 0;
            }
        } else {
            return 0;
        }
    }
    if (!is_ascii(*key)) {
        return 0;
    }
    if (is_one_of(value, VALUE_STRING, BYTES)) {
        return is_ascii(value->bytes);
    }
    return !value->number || is_one_of(value, VALUE_INT, VARINT) || is_one_of(value, VALUE_BOOL, VARINT);
}

static int take_attribute(Block *block, Span from) {
    Span key;
    Field value;
    if (!read_pair(from, &key, &value)) {
        return 0;
    }
    int is_text = is_one_of(&value, VALUE_STRING, BYTES), is_number = is_one_of(&value, VALUE_INT, VARINT);
    if (IS(key, COUNT)) {
        block->count = (int64_t)value.value;
        block->has_count = 1;
        return is_number;
    }
    if (IS(key, CLOCK_OFFSET)) {
        block->offset_ns = (int64_t)value.value;
        return is_number;
    }
    if (IS(key, DTYPE)) {
        block->dtype = value.bytes;
        return is_text;
    }
    if (IS(key, GROUPS)) {
        block->groups = value.bytes;
        return is_text && value.bytes.at < value.bytes.end;
    }
    return 1;
}

/* What a Collector adds, and nobody reads. */
static int is_ignored(const Field *field) {
    return is_one_of(field, RECORD_SEVERITY, VARINT) || is_one_of(field, RECORD_FLAGS, FIXED32) ||
           is_one_of(field, RECORD_TRACE_ID, BYTES) || is_one_of(field, RECORD_SPAN_ID, BYTES) ||
           is_one_of(field, RECORD_OBSERVED_TIME, FIXED64);
}

static int is_packed(const Block *block) {
    return IS(block->name, PACKED);
}

/* 0: the record is no block and no packed flush, or one that the protobuf library is to read. */
static int read_block(Span from, Block *block) {
    Field field;
    memset(block, 0, sizeof *block);
    while (from.at < from.end) {
        if (!read_field(&from, &field)) {
            return 0;
        }
        if (is_one_of(&field, RECORD_TIME, FIXED64)) {
            block->time_ns = field.value;
        } else if (is_one_of(&field, RECORD_EVENT_NAME, BYTES)) {
            block->name = field.bytes;
        } else if (is_one_of(&field, RECORD_ATTRIBUTES, BYTES)) {
            if (!take_attribute(block, field.bytes)) {
                return 0;
            }
        } else if (is_one_of(&field, RECORD_BODY, BYTES) && !block->body.at) {
            Field body;
            if (!read_field(&field.bytes, &body) || field.bytes.at < field.bytes.end ||
                !is_one_of(&body, VALUE_BYTES, BYTES)) {
                return 0;
            }
            block->body = body.bytes;
        } else if (!is_ignored(&field)) {
            return 0;
        }
    }
    if (!block->body.at || !block->name.at) {
        return 0;
    }
    return is_packed(block) || (block->has_count && block->dtype.at && is_ascii(block->name));
}

static PyObject *bytes_of(Span span) {
    return PyBytes_FromStringAndSize((const char *)span.at, span.end - span.at);
}

/* "" where there is none. */
static PyObject *text_of(Span span) {
    return PyUnicode_FromStringAndSize(span.at ? (const char *)span.at : "", span.end - span.at);
}

static PyObject *tuple_of(const Block *block) {
    if (is_packed(block)) {
        return Py_BuildValue("(KNN)", (unsigned long long)block->time_ns, text_of(block->groups), bytes_of(block->body));
    }
    return Py_BuildValue(
        "(NKLNNLN)", text_of(block->name), (unsigned long long)block->time_ns, (long long)block->count,
        text_of(block->dtype), text_of(block->groups), (long long)block->offset_ns, bytes_of(block->body));
}

static int append(PyObject *list, PyObject *item) {
    if (item == NULL) {
        return -1;
    }
    int failed = PyList_Append(list, item);
    Py_DECREF(item);
    return failed;
}

/* Whether it says that its records are copies; -1: nothing that is known. */
static int read_scope(Span from) {
    Field field, value;
    Span key;
    int is_copy = 0;
    while (from.at < from.end) {
        if (!read_field(&from, &field)) {
            return -1;
        }
        if (is_one_of(&field, SCOPE_NAME, BYTES) || is_one_of(&field, SCOPE_VERSION, BYTES)) {
            if (!is_ascii(field.bytes)) {
                return -1;
            }
        } else if (is_one_of(&field, SCOPE_ATTRIBUTES, BYTES)) {
            if (!read_pair(field.bytes, &key, &value)) {
                return -1;
            }
            is_copy |= IS(key, COPY);
        } else {
            return -1;
        }
    }
    return is_copy;
}

/* The records of a ScopeLogs behind those in the list. 0: leave the message to the protobuf library; -1: an error. */
static int read_scope_logs(Span from, int with_copies, PyObject *records) {
    Field field;
    Block block;
    int is_left_out = 0, has_scope = 0, has_records = 0;
    while (from.at < from.end) {
        if (!read_field(&from, &field)) {
            return 0;
        }
        if (is_one_of(&field, SCOPE_LOGS_SCOPE, BYTES) && !has_scope && !has_records) {
            int is_copy = read_scope(field.bytes);
            if (is_copy < 0) {
                return 0;
            }
            has_scope = 1;
            is_left_out = is_copy && !with_copies;
        } else if (is_one_of(&field, SCOPE_LOGS_RECORD, BYTES)) {
            has_records = 1;
            if (is_left_out) {
                return 0; /* it may not even be readable, and then the whole message is not */
            }
            PyObject *record = read_block(field.bytes, &block) ? tuple_of(&block) : bytes_of(field.bytes);
            if (append(records, record) < 0) {
                return -1;
            }
        } else if (!is_one_of(&field, SCOPE_LOGS_SCHEMA_URL, BYTES) || !is_ascii(field.bytes)) {
            return 0;
        }
    }
    return 1;
}

/* Of a ResourceLogs: appends (resource, records). As read_scope_logs. */
static int read_resource_logs(Span from, int with_copies, PyObject *parts) {
    Field field;
    Span resource = {NULL, NULL};
    int done = 1;
    PyObject *records = PyList_New(0);
    if (records == NULL) {
        return -1;
    }
    while (done == 1 && from.at < from.end) {
        if (!read_field(&from, &field)) {
            done = 0;
        } else if (is_one_of(&field, RESOURCE_LOGS_RESOURCE, BYTES) && !resource.at) {
            resource = field.bytes;
        } else if (is_one_of(&field, RESOURCE_LOGS_SCOPE_LOGS, BYTES)) {
            done = read_scope_logs(field.bytes, with_copies, records);
        } else {
            done = is_one_of(&field, RESOURCE_LOGS_SCHEMA_URL, BYTES) && is_ascii(field.bytes);
        }
    }
    if (done == 1 && !resource.at) {
        done = 0;
    }
    if (done != 1) {
        Py_DECREF(records);
        return done;
    }
    return append(parts, Py_BuildValue("(NN)", bytes_of(resource), records)) < 0 ? -1 : 1;
}

PyDoc_STRVAR(
    scan_doc,
    "scan(value, with_copies, /)\n--\n\n"
    "Of an ExportLogsServiceRequest: a list of (serialized Resource, its records), each a tuple for a block (name, time,\n"
    "count, dtype, groups, clock offset, body) or a packed flush (time, groups, body), or else a serialized LogRecord.\n"
    "None: the protobuf library is to read it.");

static PyObject *scan(PyObject *self, PyObject *arguments) {
    const char *value;
    Py_ssize_t size;
    int with_copies;
    Field field;
    if (!PyArg_ParseTuple(arguments, "y#p", &value, &size, &with_copies)) {
        return NULL;
    }
    Span from = {(const uint8_t *)value, (const uint8_t *)value + size};
    PyObject *parts = PyList_New(0);
    int done = parts == NULL ? -1 : 1;
    while (done == 1 && from.at < from.end) {
        if (!read_field(&from, &field) || !is_one_of(&field, REQUEST_RESOURCE_LOGS, BYTES)) {
            done = 0;
        } else {
            done = read_resource_logs(field.bytes, with_copies, parts);
        }
    }
    if (done == 1) {
        return parts;
    }
    Py_XDECREF(parts);
    if (done < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    is_plain_doc,
    "is_plain(body, row_bytes, rank, most_rank, group, group_count, enums, /)\n--\n\n"
    "Whether in each row of a block's body the rank (4 bytes from there on) is at most most_rank, the group (2 bytes;\n"
    "-1: the table has none) below group_count, and of each pair in enums the byte at the first at most the second.");

static PyObject *is_plain(PyObject *self, PyObject *arguments) {
    const char *body, *pairs;
    Py_ssize_t size, row_bytes, rank, group, pair_bytes;
    unsigned long most_rank, group_count;
    if (!PyArg_ParseTuple(arguments, "y#nnknky#", &body, &size, &row_bytes, &rank, &most_rank, &group, &group_count,
                          &pairs, &pair_bytes)) {
        return NULL;
    }
    const uint8_t *enums = (const uint8_t *)pairs;
    int fits = row_bytes > 0 && size % row_bytes == 0 && rank >= 0 && rank + 4 <= row_bytes && group >= -1 &&
               group + 2 <= row_bytes && pair_bytes % 2 == 0;
    for (Py_ssize_t i = 0; fits && i < pair_bytes; i += 2) {
        fits = enums[i] < row_bytes;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "these places are not in such rows");
        return NULL;
    }
    const uint8_t *row = (const uint8_t *)body, *end = row + size;
    for (; row < end; row += row_bytes) {
        const uint8_t *at = row + rank;
        uint32_t number = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        if (number > most_rank) {
            Py_RETURN_FALSE;
        }
        if (group >= 0 && (unsigned long)(row[group] | row[group + 1] << 8) >= group_count) {
            Py_RETURN_FALSE;
        }
        for (Py_ssize_t i = 0; i < pair_bytes; i += 2) {
            if (row[enums[i]] > enums[i + 1]) {
                Py_RETURN_FALSE;
            }
        }
    }
    Py_RETURN_TRUE;
}

static PyMethodDef methods[] = {
    {"scan", scan, METH_VARARGS, scan_doc},
    {"is_plain", is_plain, METH_VARARGS, is_plain_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_otlp_scan", "Blocks out of OTLP log requests.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__otlp_scan(void) { return PyModuleDef_Init(&module); }
