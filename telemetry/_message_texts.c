/* The texts of a protobuf message, each once, on CPython's stable ABI (3.10).
 *
 * The gate of an agent looks at every text that leaves; an object of the protobuf library for each attribute was most
 * of what that costs. This walks the wire format by a schema that it is given. Whatever is not surely of that schema is
 * left to the protobuf library, which says what is wrong with it. See message_texts.py; tests hold both to each other.
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

/* What is done with a field, as message_texts.py has it. */
enum { NUMBER = 0, RAW = 1, TEXT = 2, NAME = 3, MESSAGE = 4, PACKED_VARINTS = 5, PACKED_FIXED = 6, ACTIONS = 7 };
/* A message in the schema: where its fields begin, and how many. A field: number, wire type, action, and a message, or
 * the bytes of a packed number. */
enum { MESSAGE_NUMBERS = 2, FIELD_NUMBERS = 4 };
enum { MOST_TEXTS = 4096, SLOTS = 8192, DEEPEST = 32 };

typedef struct {
    Span name, text;
} Found;

typedef struct {
    const int32_t *schema;
    int32_t messages, count;
    Found found[MOST_TEXTS];
    int16_t slots[SLOTS]; /* 1 + the place in found; 0: free */
} Walk;

static uint64_t hashed(uint64_t hash, Span bytes) {
    for (; bytes.at < bytes.end; bytes.at++) {
        hash = (hash ^ *bytes.at) * 1099511628211u;
    }
    return (hash ^ 0xFF) * 1099511628211u; /* a byte that no UTF-8 has stands between the two */
}

static int equal(Span one, Span other) {
    size_t size = (size_t)(one.end - one.at);
    return size == (size_t)(other.end - other.at) && (!size || !memcmp(one.at, other.at, size));
}

/* 0: there are too many. */
static int note(Walk *walk, Span name, Span text) {
    uint64_t hash = hashed(hashed(1469598103934665603u, name), text);
    for (uint64_t slot = hash % SLOTS;; slot = (slot + 1) % SLOTS) { /* twice as many slots as texts: some are free */
        int16_t at = walk->slots[slot];
        if (!at) {
            if (walk->count == MOST_TEXTS) {
                return 0;
            }
            walk->found[walk->count].name = name;
            walk->found[walk->count].text = text;
            walk->slots[slot] = (int16_t)++walk->count;
            return 1;
        }
        if (equal(walk->found[at - 1].name, name) && equal(walk->found[at - 1].text, text)) {
            return 1;
        }
    }
}

static const int32_t *fields_of(const Walk *walk, int32_t message, int32_t *count) {
    const int32_t *head = walk->schema + message * MESSAGE_NUMBERS;
    *count = head[1];
    return walk->schema + walk->messages * MESSAGE_NUMBERS + head[0] * FIELD_NUMBERS;
}

static const int32_t *field_of(const int32_t *fields, int32_t count, const Field *field) {
    for (int32_t i = 0; i < count; i++, fields += FIELD_NUMBERS) {
        if ((uint32_t)fields[0] == field->number && (uint32_t)fields[1] == field->type) {
            return fields;
        }
    }
    return NULL;
}

static int are_varints(Span from) {
    uint64_t value;
    while (from.at < from.end) {
        if (!read_varint(&from, &value)) {
            return 0;
        }
    }
    return 1;
}

/* The name that this message gives to the texts in it; the one from above where it gives none. 0: it gives several. */
static int find_name(Span from, const int32_t *fields, int32_t count, Span *name) {
    Field field;
    int names = 0;
    while (from.at < from.end) {
        if (!read_field(&from, &field)) {
            return 0;
        }
        const int32_t *known = field_of(fields, count, &field);
        if (known != NULL && known[2] == NAME) {
            *name = field.bytes;
            names++;
        }
    }
    return names <= 1;
}

static int has_name(const int32_t *fields, int32_t count) {
    for (int32_t i = 0; i < count; i++, fields += FIELD_NUMBERS) {
        if (fields[2] == NAME) {
            return 1;
        }
    }
    return 0;
}

/* 0: leave it to the protobuf library. name: under which the texts of this message stand. */
static int take(Walk *walk, Span from, int32_t message, Span name, int depth) {
    static const uint8_t nothing[1];
    const Span nameless = {nothing, nothing};
    int32_t count;
    const int32_t *fields = fields_of(walk, message, &count);
    if (depth > DEEPEST) {
        return 0;
    }
    if (has_name(fields, count)) {
        name = nameless; /* of a pair without a key */
        if (!find_name(from, fields, count, &name)) {
            return 0;
        }
    }
    while (from.at < from.end) {
        Field field;
        if (!read_field(&from, &field)) {
            return 0;
        }
        const int32_t *known = field_of(fields, count, &field);
        if (known == NULL) {
            return 0;
        }
        int is_right = 1;
        switch (known[2]) {
        case TEXT:
            is_right = note(walk, name, field.bytes);
            break;
        case NAME:
            is_right = note(walk, nameless, field.bytes);
            break;
        case MESSAGE:
            is_right = take(walk, field.bytes, known[3], name, depth + 1);
            break;
        case PACKED_VARINTS:
            is_right = are_varints(field.bytes);
            break;
        case PACKED_FIXED:
            is_right = (field.bytes.end - field.bytes.at) % known[3] == 0;
            break;
        default: /* a number, or bytes that are no text */
            break;
        }
        if (!is_right) {
            return 0;
        }
    }
    return 1;
}

static PyObject *text_of(Span span) {
    return PyUnicode_DecodeUTF8((const char *)span.at, span.end - span.at, "strict");
}

/* None where one of them is no UTF-8. */
static PyObject *list_of(const Walk *walk) {
    PyObject *list = PyList_New(walk->count);
    for (int32_t i = 0; list != NULL && i < walk->count; i++) {
        PyObject *name = text_of(walk->found[i].name), *text = name == NULL ? NULL : text_of(walk->found[i].text);
        PyObject *pair = text == NULL ? NULL : PyTuple_Pack(2, name, text);
        Py_XDECREF(name);
        Py_XDECREF(text);
        if (pair == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SetItem(list, i, pair);
        }
    }
    if (list == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return list;
}

/* Whether a schema leads nowhere outside of itself. */
static int is_sound(const int32_t *schema, Py_ssize_t numbers, Py_ssize_t messages) {
    Py_ssize_t left = numbers - messages * MESSAGE_NUMBERS;
    if (messages <= 0 || messages > numbers / MESSAGE_NUMBERS || left % FIELD_NUMBERS) {
        return 0;
    }
    Py_ssize_t fields = left / FIELD_NUMBERS;
    for (Py_ssize_t i = 0; i < messages; i++) {
        int32_t begin = schema[i * MESSAGE_NUMBERS], count = schema[i * MESSAGE_NUMBERS + 1];
        if (begin < 0 || count < 0 || begin > fields || count > fields - begin) {
            return 0;
        }
    }
    const int32_t *field = schema + messages * MESSAGE_NUMBERS;
    for (Py_ssize_t i = 0; i < fields; i++, field += FIELD_NUMBERS) {
        int has_bytes = field[2] != NUMBER;
        if (field[2] < 0 || field[2] >= ACTIONS || has_bytes != (field[1] == BYTES) ||
            (field[2] == MESSAGE && (field[3] < 0 || field[3] >= messages)) || (field[2] == PACKED_FIXED && field[3] < 1)) {
            return 0;
        }
    }
    return 1;
}

PyDoc_STRVAR(
    texts_doc,
    "texts(value, schema, messages, /)\n--\n\n"
    "Of a serialized message, the first of the schema's: a list of (name, text), each once; name is that of the pair in\n"
    "which a text stands, or nothing. schema: numbers of 32 bits (message_texts.py), of so many messages.\n"
    "None: the protobuf library is to read it. Raises ValueError for a schema that is none.");

static PyObject *texts(PyObject *self, PyObject *arguments) {
    const char *value, *schema;
    Py_ssize_t size, schema_bytes, messages;
    if (!PyArg_ParseTuple(arguments, "y#y#n", &value, &size, &schema, &schema_bytes, &messages)) {
        return NULL;
    }
    Walk *walk = calloc(1, sizeof *walk);
    int32_t *numbers = malloc((size_t)schema_bytes + 1); /* aligned, as the caller's bytes need not be */
    PyObject *result = NULL;
    if (walk == NULL || numbers == NULL) {
        PyErr_NoMemory();
    } else if (schema_bytes % 4 || (memcpy(numbers, schema, (size_t)schema_bytes), 0) ||
               !is_sound(numbers, schema_bytes / 4, messages)) {
        PyErr_SetString(PyExc_ValueError, "this is no schema");
    } else {
        static const uint8_t nothing[1];
        Span from = {(const uint8_t *)value, (const uint8_t *)value + size}, nameless = {nothing, nothing};
        walk->schema = numbers;
        walk->messages = (int32_t)messages;
        if (take(walk, from, 0, nameless, 0)) {
            result = list_of(walk);
        } else {
            result = Py_None;
            Py_INCREF(result);
        }
    }
    free(numbers);
    free(walk);
    return result;
}

static PyMethodDef methods[] = {
    {"texts", texts, METH_VARARGS, texts_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_message_texts", "The texts of a protobuf message.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__message_texts(void) { return PyModuleDef_Init(&module); }
