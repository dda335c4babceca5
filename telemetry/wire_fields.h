/* Fields of the protobuf wire format, for the C modules that read them. Nothing is read beyond the span that is given. */
#ifndef WHICHRANK_WIRE_FIELDS_H
#define WHICHRANK_WIRE_FIELDS_H

#include <stddef.h>
#include <stdint.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

typedef struct {
    const uint8_t *at, *end;
} Span;

typedef struct {
    uint32_t number, type;
    uint64_t value; /* of a number */
    Span bytes;
} Field;

static inline int read_varint(Span *from, uint64_t *value) {
    *value = 0;
    for (int shift = 0; from->at < from->end && shift < 64; shift += 7) {
        uint8_t byte = *from->at++;
        if (shift == 63 && byte > 1) {
            return 0;
        }
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) {
            return 1;
        }
    }
    return 0;
}

/* The next field. 0: there is none that is whole. */
static inline int read_field(Span *from, Field *field) {
    uint64_t tag, size;
    field->bytes.at = field->bytes.end = from->at; /* of a number: nothing */
    if (!read_varint(from, &tag) || tag > UINT32_MAX || tag < 8) {
        return 0;
    }
    field->number = (uint32_t)tag >> 3;
    field->type = (uint32_t)tag & 7;
    size_t left;
    switch (field->type) {
    case VARINT:
        return read_varint(from, &field->value);
    case FIXED64:
    case FIXED32:
        left = (size_t)(from->end - from->at);
        size = field->type == FIXED64 ? 8 : 4;
        if (left < size) {
            return 0;
        }
        field->value = 0;
        for (uint64_t i = 0; i < size; i++) { /* little-endian, whatever the machine is */
            field->value |= (uint64_t)from->at[i] << (8 * i);
        }
        from->at += size;
        return 1;
    case BYTES:
        if (!read_varint(from, &size) || size > (uint64_t)(from->end - from->at)) {
            return 0;
        }
        field->bytes.at = from->at;
        from->at += size;
        field->bytes.end = from->at;
        return 1;
    default:
        return 0;
    }
}

#endif
