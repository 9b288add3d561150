/* The inner loops of anabranch.protocol.codec in C: once per message, 20 to 90 times as fast as Python.
 *
 * python.py (decode) and packing.py (pack, arranged, route, key_hashes) define what they do; a property test compares
 * bytes and kinds of errors. This file knows only the batch layout, SingleMessageMetadata and murmur3.
 *
 * Rules: input is not trusted. Every length is compared with what is left before it is used; nothing is allocated by a
 * number from the input unless that number was compared with the input's size first. Protobuf is read as upb reads it:
 * unknown fields are skipped, the last value wins, a known number with another wire type is unknown.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_BYTES_MIN 6 /* a size, and in the metadata a payload size */
#define GROUP_DEPTH_MAX 100
#define NO_SEQUENCE (-1)

typedef const uint8_t *bytes_t;

typedef struct {
    PyObject *bad_entry, *run_too_large, *bad_column;
} state_t;

static state_t *state_of(PyObject *module) { return (state_t *)PyModule_GetState(module); }

/* ------------------------------------------------------------------------------------------------------ protobuf */

/* NULL: it does not end within ten bytes, or not before `end`. */
static bytes_t read_varint(bytes_t at, bytes_t end, uint64_t *value) {
    uint64_t found = 0;
    for (int shift = 0; shift < 70 && at < end; shift += 7) {
        uint8_t one = *at++;
        found |= (uint64_t)(one & 127) << shift;
        if (one < 128) {
            *value = found;
            return at;
        }
    }
    return NULL;
}

/* A number of at most five bytes and not above `limit`: tags and lengths. */
static bytes_t read_short(bytes_t at, bytes_t end, uint64_t limit, uint64_t *value) {
    bytes_t after = read_varint(at, end, value);
    return after == NULL || after - at > 5 || *value > limit ? NULL : after;
}

static bytes_t read_tag(bytes_t at, bytes_t end, uint32_t *number, uint32_t *type) {
    uint64_t tag;
    at = read_short(at, end, UINT32_MAX, &tag);
    if (at == NULL) return NULL;
    *number = (uint32_t)(tag >> 3);
    *type = (uint32_t)(tag & 7);
    return *number == 0 ? NULL : at;
}

static bytes_t read_length(bytes_t at, bytes_t end, uint64_t *length) {
    at = read_short(at, end, INT32_MAX, length);
    return at == NULL || *length > (uint64_t)(end - at) ? NULL : at;
}

static bytes_t skip_field(bytes_t at, bytes_t end, uint32_t number, uint32_t type, int depth) {
    uint64_t ignored;
    switch (type) {
    case 0:
        return read_varint(at, end, &ignored);
    case 1:
        return end - at < 8 ? NULL : at + 8;
    case 2:
        at = read_length(at, end, &ignored);
        return at == NULL ? NULL : at + ignored;
    case 3:
        if (depth >= GROUP_DEPTH_MAX) return NULL;
        while (at != NULL && at < end) {
            uint32_t inner, inner_type;
            at = read_tag(at, end, &inner, &inner_type);
            if (at == NULL) return NULL;
            if (inner_type == 4) return inner == number ? at : NULL;
            at = skip_field(at, end, inner, inner_type, depth + 1);
        }
        return NULL;
    case 5:
        return end - at < 4 ? NULL : at + 4;
    default:
        return NULL;
    }
}

typedef struct {
    bytes_t at;
    size_t size;
} text_t;

typedef struct {
    text_t name, value;
} pair_t;

typedef struct {
    text_t key;
    uint64_t event_time, sequence_id;
    int32_t payload_size;
    int has_key, has_size, has_sequence, is_base64, is_compacted, is_null, is_null_key;
} single_t;

/* Pairs of the message that is being read; kept from message to message. */
typedef struct {
    pair_t *at;
    size_t count, room;
} pairs_t;

enum { FINE, BAD, NO_MEMORY };

static int read_pair(bytes_t at, bytes_t end, pair_t *pair) {
    int has_name = 0, has_value = 0;
    while (at < end) {
        uint32_t number, type;
        uint64_t length;
        at = read_tag(at, end, &number, &type);
        if (at == NULL) return BAD;
        if (type == 2 && (number == 1 || number == 2)) {
            at = read_length(at, end, &length);
            if (at == NULL) return BAD;
            text_t text = {at, (size_t)length};
            if (number == 1) pair->name = text, has_name = 1;
            else pair->value = text, has_value = 1;
            at += length;
        } else if ((at = skip_field(at, end, number, type, 0)) == NULL) {
            return BAD;
        }
    }
    return has_name && has_value ? FINE : BAD;
}

static int add_pair(pairs_t *pairs, const pair_t *pair) {
    if (pairs->count == pairs->room) {
        size_t room = pairs->room ? pairs->room * 2 : 16;
        pair_t *at = realloc(pairs->at, room * sizeof(pair_t));
        if (at == NULL) return NO_MEMORY;
        pairs->at = at;
        pairs->room = room;
    }
    pairs->at[pairs->count++] = *pair;
    return FINE;
}

static int read_single(bytes_t at, bytes_t end, single_t *single, pairs_t *pairs) {
    memset(single, 0, sizeof *single);
    pairs->count = 0;
    while (at < end) {
        uint32_t number, type;
        uint64_t value;
        at = read_tag(at, end, &number, &type);
        if (at == NULL) return BAD;
        if (type == 0 && number >= 3 && number <= 10 && number != 7) {
            at = read_varint(at, end, &value);
            if (at == NULL) return BAD;
            switch (number) {
            case 3: single->payload_size = (int32_t)(uint32_t)value; single->has_size = 1; break;
            case 4: single->is_compacted = value != 0; break;
            case 5: single->event_time = value; break;
            case 6: single->is_base64 = value != 0; break;
            case 8: single->sequence_id = value; single->has_sequence = 1; break;
            case 9: single->is_null = value != 0; break;
            default: single->is_null_key = value != 0; break;
            }
        } else if (type == 2 && (number == 1 || number == 2)) {
            at = read_length(at, end, &value);
            if (at == NULL) return BAD;
            if (number == 2) {
                single->key = (text_t){at, (size_t)value};
                single->has_key = 1;
            } else {
                pair_t pair;
                int outcome = read_pair(at, at + value, &pair);
                if (outcome == FINE) outcome = add_pair(pairs, &pair);
                if (outcome != FINE) return outcome;
            }
            at += value;
        } else if ((at = skip_field(at, end, number, type, 0)) == NULL) {
            return BAD;
        }
    }
    return single->has_size ? FINE : BAD;
}

/* UTF-8 as Python has it: no surrogates, nothing longer than needed, nothing above U+10FFFF. */
static int is_utf8(text_t text) {
    bytes_t at = text.at, end = at + text.size;
    while (at < end) {
        uint64_t eight;
        if (end - at >= 8 && (memcpy(&eight, at, 8), (eight & UINT64_C(0x8080808080808080)) == 0)) {
            at += 8;
            continue;
        }
        uint8_t one = *at++;
        if (one < 0x80) continue;
        int more = one >= 0xC2 && one <= 0xDF ? 1 : (one & 0xF0) == 0xE0 ? 2 : one >= 0xF0 && one <= 0xF4 ? 3 : 0;
        if (more == 0 || end - at < more) return 0;
        uint8_t two = at[0];
        if ((one == 0xE0 && two < 0xA0) || (one == 0xED && two > 0x9F) || (one == 0xF0 && two < 0x90) ||
            (one == 0xF4 && two > 0x8F))
            return 0;
        for (; more > 0; more--)
            if ((*at++ & 0xC0) != 0x80) return 0;
    }
    return 1;
}

/* -------------------------------------------------------------------------------------------------------- decoding */

typedef struct {
    uint8_t *at;
    size_t size, room;
} heap_t;

static int heap_add(heap_t *heap, const void *data, size_t size) {
    if (heap->room - heap->size < size) {
        size_t room = heap->room < 4096 ? 4096 : heap->room;
        while (room - heap->size < size) room *= 2;
        uint8_t *at = realloc(heap->at, room);
        if (at == NULL) return NO_MEMORY;
        heap->at = at;
        heap->room = room;
    }
    if (size) memcpy(heap->at + heap->size, data, size);
    heap->size += size;
    return FINE;
}

static void set_bit(uint8_t *bits, size_t row) { bits[row >> 3] |= (uint8_t)(1 << (row & 7)); }

typedef struct {
    int32_t *index, *key_offsets, *value_offsets;
    int64_t *times, *sequences;
    uint8_t *key_bits, *base64_bits, *value_bits, *values;
    size_t rows, value_bytes, pair_count;
    int lacks_key, lacks_value, has_base64;
    heap_t keys, names, texts, pair_offsets, name_offsets, text_offsets;
    pairs_t pairs;
} rows_t;

/* Where the pairs of the rows end; the columns of names and texts begin with the first message that has one. */
static int add_pairs(rows_t *rows) {
    if (rows->pair_count == 0 && rows->pairs.count == 0) return FINE;
    int32_t end = 0;
    int failed = FINE;
    if (rows->pair_offsets.size == 0) {
        for (size_t row = 0; row <= rows->rows && failed == FINE; row++)
            failed = heap_add(&rows->pair_offsets, &end, 4);
        if (failed == FINE) failed = heap_add(&rows->name_offsets, &end, 4);
        if (failed == FINE) failed = heap_add(&rows->text_offsets, &end, 4);
    }
    for (size_t index = 0; index < rows->pairs.count && failed == FINE; index++) {
        pair_t *pair = &rows->pairs.at[index];
        if (!is_utf8(pair->name) || !is_utf8(pair->value)) return BAD;
        failed = heap_add(&rows->names, pair->name.at, pair->name.size);
        end = (int32_t)rows->names.size;
        if (failed == FINE) failed = heap_add(&rows->name_offsets, &end, 4);
        if (failed == FINE) failed = heap_add(&rows->texts, pair->value.at, pair->value.size);
        end = (int32_t)rows->texts.size;
        if (failed == FINE) failed = heap_add(&rows->text_offsets, &end, 4);
    }
    rows->pair_count += rows->pairs.count;
    end = (int32_t)rows->pair_count;
    return failed == FINE ? heap_add(&rows->pair_offsets, &end, 4) : failed;
}

static int add_row(rows_t *rows, int32_t number, const single_t *single, bytes_t value) {
    size_t row = rows->rows;
    if (single->has_key && !single->is_null_key) {
        if (!is_utf8(single->key)) return BAD;
        if (heap_add(&rows->keys, single->key.at, single->key.size) != FINE) return NO_MEMORY;
        set_bit(rows->key_bits, row);
        if (single->is_base64) {
            set_bit(rows->base64_bits, row);
            rows->has_base64 = 1;
        }
    } else {
        rows->lacks_key = 1;
    }
    if (single->is_null) {
        rows->lacks_value = 1;
    } else {
        size_t size = (size_t)single->payload_size;
        memcpy(rows->values + rows->value_bytes, value, size);
        rows->value_bytes += size;
        set_bit(rows->value_bits, row);
    }
    rows->index[row] = number;
    rows->key_offsets[row + 1] = (int32_t)rows->keys.size;
    rows->value_offsets[row + 1] = (int32_t)rows->value_bytes;
    rows->times[row] = (int64_t)single->event_time;
    rows->sequences[row] = single->has_sequence ? (int64_t)single->sequence_id : NO_SEQUENCE;
    int outcome = add_pairs(rows);
    rows->rows++;
    return outcome;
}

static int decode_body(rows_t *rows, bytes_t at, size_t size, Py_ssize_t count) {
    bytes_t end = at + size;
    for (Py_ssize_t number = 0; number < count; number++) {
        if (end - at < 4) return BAD;
        uint32_t length = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
        at += 4;
        if (length > (uint64_t)(end - at)) return BAD;
        single_t single;
        int outcome = read_single(at, at + length, &single, &rows->pairs);
        if (outcome != FINE) return outcome;
        at += length;
        if (single.payload_size < 0 || single.payload_size > end - at) return BAD;
        if (!single.is_compacted) {
            outcome = add_row(rows, (int32_t)number, &single, at);
            if (outcome != FINE) return outcome;
        }
        at += single.payload_size;
    }
    return at == end ? FINE : BAD;
}

typedef struct {
    Py_buffer view;
    Py_ssize_t count, rows;
} body_t;

/* The bodies' buffers; `*total` is their size. The number that are held is returned, -1 less the number after an error. */
static Py_ssize_t hold_bodies(PyObject *bodies, body_t *held, Py_ssize_t count, size_t *total) {
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *body = PySequence_GetItem(bodies, index);
        if (body == NULL) return -1 - index;
        PyObject *data = PySequence_GetItem(body, 0), *messages = PySequence_GetItem(body, 1);
        Py_DECREF(body);
        int failed = data == NULL || messages == NULL;
        if (!failed) {
            held[index].count = PyLong_AsSsize_t(messages);
            failed = (held[index].count == -1 && PyErr_Occurred()) ||
                     PyObject_GetBuffer(data, &held[index].view, PyBUF_SIMPLE) < 0;
        }
        Py_XDECREF(data);
        Py_XDECREF(messages);
        if (failed) return -1 - index;
        *total += (size_t)held[index].view.len;
    }
    return count;
}

static PyObject *new_bytes(size_t size, void *at_address) {
    PyObject *made = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (made != NULL) *(void **)at_address = PyByteArray_AsString(made);
    return made;
}

static PyObject *heap_bytes(const heap_t *heap) {
    return PyByteArray_FromStringAndSize((const char *)heap->at, (Py_ssize_t)heap->size);
}

enum { INDEX, KEY_OFFSETS, VALUE_OFFSETS, TIMES, SEQUENCES, KEY_BITS, BASE64_BITS, VALUE_BITS, VALUES, COLUMNS };

/* Room for as many rows as the bodies can hold. */
static int make_columns(rows_t *rows, PyObject **made, size_t rows_max, size_t total) {
    size_t bits = (rows_max + 7) / 8;
    made[INDEX] = new_bytes(4 * rows_max, &rows->index);
    made[KEY_OFFSETS] = new_bytes(4 * (rows_max + 1), &rows->key_offsets);
    made[VALUE_OFFSETS] = new_bytes(4 * (rows_max + 1), &rows->value_offsets);
    made[TIMES] = new_bytes(8 * rows_max, &rows->times);
    made[SEQUENCES] = new_bytes(8 * rows_max, &rows->sequences);
    made[KEY_BITS] = new_bytes(bits, &rows->key_bits);
    made[BASE64_BITS] = new_bytes(bits, &rows->base64_bits);
    made[VALUE_BITS] = new_bytes(bits, &rows->value_bits);
    made[VALUES] = new_bytes(total, &rows->values);
    for (int column = 0; column < COLUMNS; column++)
        if (made[column] == NULL) return -1;
    memset(rows->key_bits, 0, bits);
    memset(rows->base64_bits, 0, bits);
    memset(rows->value_bits, 0, bits);
    rows->key_offsets[0] = rows->value_offsets[0] = 0;
    return 0;
}

static int shrink_columns(const rows_t *rows, PyObject **made) {
    size_t count = rows->rows, bits = (count + 7) / 8;
    size_t sizes[COLUMNS] = {4 * count, 4 * (count + 1), 4 * (count + 1), 8 * count, 8 * count,
                             bits,      bits,            bits,            rows->value_bytes};
    for (int column = 0; column < COLUMNS; column++)
        if (PyByteArray_Resize(made[column], (Py_ssize_t)sizes[column]) < 0) return -1;
    return 0;
}

static PyObject *columns_tuple(const rows_t *rows, PyObject **made, PyObject *per_body) {
    PyObject *pairs, *keys = heap_bytes(&rows->keys);
    if (rows->pair_count) {
        PyObject *parts[5] = {heap_bytes(&rows->pair_offsets), heap_bytes(&rows->name_offsets), heap_bytes(&rows->names),
                              heap_bytes(&rows->text_offsets), heap_bytes(&rows->texts)};
        /* "N" takes the references, also those of a call that fails. */
        pairs = Py_BuildValue("(N(NNO)(NNO))", parts[0], parts[1], parts[2], Py_None, parts[3], parts[4], Py_None);
    } else {
        pairs = Py_None;
        Py_INCREF(pairs);
    }
    if (pairs == NULL || keys == NULL) {
        Py_XDECREF(pairs);
        Py_XDECREF(keys);
        return NULL;
    }
    return Py_BuildValue(
        "nOO(ONO)O(OOO)OON", (Py_ssize_t)rows->rows, per_body, made[INDEX], made[KEY_OFFSETS], keys,
        rows->lacks_key ? made[KEY_BITS] : Py_None, rows->has_base64 ? made[BASE64_BITS] : Py_None,
        made[VALUE_OFFSETS], made[VALUES], rows->lacks_value ? made[VALUE_BITS] : Py_None, made[TIMES],
        made[SEQUENCES], pairs);
}

static PyObject *rows_per_body(const body_t *held, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t index = 0; list != NULL && index < count; index++) {
        PyObject *rows = PyLong_FromSsize_t(held[index].rows);
        if (rows == NULL || PyList_SetItem(list, index, rows) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *decode_held(state_t *state, body_t *held, Py_ssize_t count, size_t total) {
    size_t rows_max = 0;
    if (total > INT32_MAX) {
        PyErr_SetString(state->run_too_large, "more than 2 GiB in one run: decode fewer bodies at a time");
        return NULL;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        Py_ssize_t messages = held[index].count;
        if (messages > held[index].view.len / RECORD_BYTES_MIN) {
            PyErr_Format(state->bad_entry, "batch of %zd messages has only %zd bytes", messages, held[index].view.len);
            return NULL;
        }
        if (messages > 0) rows_max += (size_t)messages;
    }
    rows_t rows;
    PyObject *made[COLUMNS] = {NULL}, *answer = NULL, *per_body = NULL;
    memset(&rows, 0, sizeof rows);
    if (make_columns(&rows, made, rows_max, total) == 0) {
        int outcome = FINE;
        PyThreadState *saved = PyEval_SaveThread();
        for (Py_ssize_t index = 0; index < count && outcome == FINE; index++) {
            size_t before = rows.rows;
            outcome = decode_body(&rows, held[index].view.buf, (size_t)held[index].view.len, held[index].count);
            held[index].rows = (Py_ssize_t)(rows.rows - before);
        }
        PyEval_RestoreThread(saved);
        if (outcome == BAD)
            PyErr_SetString(state->bad_entry, "batch does not keep to its layout");
        else if (outcome == NO_MEMORY)
            PyErr_NoMemory();
        else if ((per_body = rows_per_body(held, count)) != NULL && shrink_columns(&rows, made) == 0)
            answer = columns_tuple(&rows, made, per_body);
    }
    Py_XDECREF(per_body);
    for (int column = 0; column < COLUMNS; column++) Py_XDECREF(made[column]);
    heap_t *heaps[] = {&rows.keys, &rows.names, &rows.texts, &rows.pair_offsets, &rows.name_offsets, &rows.text_offsets};
    for (size_t index = 0; index < sizeof heaps / sizeof *heaps; index++) free(heaps[index]->at);
    free(rows.pairs.at);
    return answer;
}

static PyObject *decode(PyObject *module, PyObject *bodies) {
    Py_ssize_t count = PySequence_Size(bodies);
    if (count < 0) return NULL;
    body_t *held = calloc((size_t)count + 1, sizeof(body_t));
    if (held == NULL) return PyErr_NoMemory();
    size_t total = 0;
    Py_ssize_t got = hold_bodies(bodies, held, count, &total);
    PyObject *answer = got < 0 ? NULL : decode_held(state_of(module), held, count, total);
    for (Py_ssize_t index = (got < 0 ? -1 - got : got) - 1; index >= 0; index--) PyBuffer_Release(&held[index].view);
    free(held);
    return answer;
}

/* --------------------------------------------------------------------------------------------------------- listing */

/* What is wanted of the messages of one body; NULL: not wanted. Rows that are there are counted in any case. */
typedef struct {
    PyObject *indexes, *values, *keys, *sequences, *times, *properties, *base64;
    Py_ssize_t rows;
    int has_times, has_pairs;
} lists_t;

static int add_to(PyObject *list, PyObject *one) {
    int failed = one == NULL || PyList_Append(list, one) < 0;
    Py_XDECREF(one);
    return failed ? -1 : 0;
}

static PyObject *none(void) {
    Py_INCREF(Py_None);
    return Py_None;
}

/* NULL: no memory; the text is known to be UTF-8. */
static PyObject *text_of(text_t text) { return PyUnicode_DecodeUTF8((const char *)text.at, (Py_ssize_t)text.size, NULL); }

static PyObject *pairs_dict(const pairs_t *pairs) {
    PyObject *made = PyDict_New();
    for (size_t index = 0; made != NULL && index < pairs->count; index++) {
        PyObject *name = text_of(pairs->at[index].name), *value = text_of(pairs->at[index].value);
        if (name == NULL || value == NULL || PyDict_SetItem(made, name, value) < 0) Py_CLEAR(made);
        Py_XDECREF(name);
        Py_XDECREF(value);
    }
    return made;
}

/* FINE, BAD, or NO_MEMORY with an error that is set. */
static int list_row(lists_t *lists, Py_ssize_t number, const single_t *single, const pairs_t *pairs, bytes_t value) {
    int has_key = single->has_key && !single->is_null_key, failed = 0;
    if (has_key && !is_utf8(single->key)) return BAD;
    for (size_t index = 0; index < pairs->count; index++)
        if (!is_utf8(pairs->at[index].name) || !is_utf8(pairs->at[index].value)) return BAD;
    if (single->event_time) lists->has_times = 1;
    if (pairs->count) lists->has_pairs = 1;
    if (lists->values != NULL)
        failed |= add_to(lists->values, single->is_null ? none()
                                                        : PyBytes_FromStringAndSize((const char *)value,
                                                                                    single->payload_size));
    if (lists->keys != NULL) {
        failed |= add_to(lists->keys, has_key ? text_of(single->key) : none());
        if (has_key && single->is_base64) failed |= add_to(lists->base64, PyLong_FromSsize_t(lists->rows));
    }
    if (lists->indexes != NULL) {
        failed |= add_to(lists->indexes, PyLong_FromSsize_t(number));
        failed |= add_to(lists->sequences, PyLong_FromLongLong(single->has_sequence ? (int64_t)single->sequence_id
                                                                                    : NO_SEQUENCE));
        failed |= add_to(lists->times, PyLong_FromLongLong((int64_t)single->event_time));
        if (lists->has_pairs) { /* the list begins with the first message that has some */
            while (!failed && PyList_Size(lists->properties) < lists->rows)
                failed |= add_to(lists->properties, PyDict_New());
            failed |= add_to(lists->properties, pairs_dict(pairs));
        }
    }
    lists->rows++;
    return failed ? NO_MEMORY : FINE;
}

static int list_body(lists_t *lists, pairs_t *pairs, bytes_t at, size_t size, Py_ssize_t count) {
    bytes_t end = at + size;
    for (Py_ssize_t number = 0; number < count; number++) {
        if (end - at < 4) return BAD;
        uint32_t length = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
        at += 4;
        if (length > (uint64_t)(end - at)) return BAD;
        single_t single;
        int outcome = read_single(at, at + length, &single, pairs);
        if (outcome == NO_MEMORY) PyErr_NoMemory();
        if (outcome != FINE) return outcome;
        at += length;
        if (single.payload_size < 0 || single.payload_size > end - at) return BAD;
        if (!single.is_compacted && (outcome = list_row(lists, number, &single, pairs, at)) != FINE) return outcome;
        at += single.payload_size;
    }
    return at == end ? FINE : BAD;
}

static int list_all(PyObject *module, PyObject *arguments, lists_t *lists) {
    state_t *state = state_of(module);
    PyObject *data;
    Py_ssize_t count;
    Py_buffer view;
    pairs_t pairs = {NULL, 0, 0};
    if (!PyArg_ParseTuple(arguments, "On", &data, &count)) return -1;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return -1;
    int outcome = NO_MEMORY;
    if (view.len > INT32_MAX || count > view.len / RECORD_BYTES_MIN)
        PyErr_Format(state->bad_entry, "batch of %zd messages has %zd bytes", count, view.len);
    else if ((outcome = list_body(lists, &pairs, view.buf, (size_t)view.len, count)) == BAD)
        PyErr_SetString(state->bad_entry, "batch does not keep to its layout");
    PyBuffer_Release(&view);
    free(pairs.at);
    return outcome == FINE ? 0 : -1;
}

static PyObject *counted(PyObject *module, PyObject *arguments) {
    lists_t lists;
    memset(&lists, 0, sizeof lists);
    return list_all(module, arguments, &lists) < 0 ? NULL : PyLong_FromSsize_t(lists.rows);
}

static PyObject *values_of(PyObject *module, PyObject *arguments) {
    lists_t lists;
    memset(&lists, 0, sizeof lists);
    lists.values = PyList_New(0);
    if (lists.values != NULL && list_all(module, arguments, &lists) < 0) Py_CLEAR(lists.values);
    return lists.values;
}

static PyObject *keys_of(PyObject *module, PyObject *arguments) {
    lists_t lists;
    memset(&lists, 0, sizeof lists);
    lists.keys = PyList_New(0);
    lists.base64 = PyList_New(0);
    PyObject *answer = NULL;
    if (lists.keys != NULL && lists.base64 != NULL && list_all(module, arguments, &lists) == 0)
        answer = Py_BuildValue("OO", lists.keys, lists.base64);
    Py_XDECREF(lists.keys);
    Py_XDECREF(lists.base64);
    return answer;
}

static PyObject *listed(PyObject *module, PyObject *arguments) {
    lists_t lists;
    memset(&lists, 0, sizeof lists);
    PyObject **wanted[] = {&lists.indexes, &lists.values,     &lists.keys,  &lists.sequences,
                           &lists.times,   &lists.properties, &lists.base64};
    size_t count = sizeof wanted / sizeof *wanted;
    int failed = 0;
    for (size_t index = 0; index < count; index++) failed |= (*wanted[index] = PyList_New(0)) == NULL;
    PyObject *answer = NULL;
    if (!failed && list_all(module, arguments, &lists) == 0)
        answer = Py_BuildValue("OOOOOOO", lists.indexes, lists.values, lists.keys, lists.base64, lists.sequences,
                               lists.has_times ? lists.times : Py_None, lists.has_pairs ? lists.properties : Py_None);
    for (size_t index = 0; index < count; index++) Py_XDECREF(*wanted[index]);
    return answer;
}

/* --------------------------------------------------------------------------------------------------------- columns */

/* A column on its way in: a list, or (offsets, bytes per offset, data, validity, first row, rows, is it text). */
typedef struct {
    PyObject *list; /* borrowed; NULL for the other form */
    Py_buffer offsets, data, validity;
    int width, is_text, is_there;
    Py_ssize_t first, rows;
} column_t;

enum { MISSING, BYTES, TEXT, WRONG };

typedef struct {
    bytes_t at;
    size_t size;
    int kind;
} piece_t;

static void column_close(column_t *column) {
    PyBuffer_Release(&column->offsets); /* does nothing with one that was never taken */
    PyBuffer_Release(&column->data);
    PyBuffer_Release(&column->validity);
}

static int column_open(state_t *state, PyObject *given, const char *name, column_t *column) {
    memset(column, 0, sizeof *column);
    if (given == Py_None) return 0;
    column->is_there = 1;
    if (PyList_Check(given)) {
        column->list = given;
        column->rows = PyList_Size(given);
        return 0;
    }
    PyObject *offsets, *data, *validity;
    if (!PyArg_ParseTuple(given, "OiOOnnp", &offsets, &column->width, &data, &validity, &column->first, &column->rows,
                          &column->is_text))
        return -1;
    if (PyObject_GetBuffer(offsets, &column->offsets, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(data, &column->data, PyBUF_SIMPLE) < 0 ||
        (validity != Py_None && PyObject_GetBuffer(validity, &column->validity, PyBUF_SIMPLE) < 0)) {
        column_close(column);
        return -1;
    }
    Py_ssize_t most = (column->offsets.len / (column->width == 8 ? 8 : 4)) - 1;
    int fits = (column->width == 4 || column->width == 8) && column->first >= 0 && column->rows >= 0 &&
               column->first <= most && column->rows <= most - column->first &&
               (validity == Py_None || column->first + column->rows <= column->validity.len * 8);
    if (!fits) {
        PyErr_Format(state->bad_column, "%s has buffers that are too short for its rows", name);
        column_close(column);
        return -1;
    }
    return 0;
}

static int64_t offset_at(const column_t *column, Py_ssize_t place) {
    if (column->width == 8) {
        int64_t wide;
        memcpy(&wide, (const char *)column->offsets.buf + 8 * place, 8);
        return wide;
    }
    int32_t narrow;
    memcpy(&narrow, (const char *)column->offsets.buf + 4 * place, 4);
    return narrow;
}

/* `row` is within the column's rows. Kind WRONG: an error is set. */
static piece_t column_get(state_t *state, const column_t *column, Py_ssize_t row, const char *name, int allows_text) {
    piece_t piece = {NULL, 0, MISSING};
    if (column->list != NULL) {
        PyObject *one = PyList_GetItem(column->list, row);
        Py_ssize_t size = 0;
        if (one == NULL) {
            piece.kind = WRONG;
        } else if (one == Py_None) {
            return piece;
        } else if (PyBytes_Check(one)) {
            piece = (piece_t){(bytes_t)PyBytes_AsString(one), (size_t)PyBytes_Size(one), BYTES};
        } else if (PyUnicode_Check(one) && allows_text) {
            piece.at = (bytes_t)PyUnicode_AsUTF8AndSize(one, &size);
            piece.size = (size_t)size;
            piece.kind = piece.at == NULL ? WRONG : TEXT;
            if (piece.at == NULL) {
                PyErr_Clear();
                PyErr_Format(state->bad_column, "%s of row %zd cannot be encoded as UTF-8", name, row);
            }
        } else {
            PyErr_Format(state->bad_column, "%s of row %zd is neither missing nor of the right kind", name, row);
            piece.kind = WRONG;
        }
        return piece;
    }
    Py_ssize_t place = column->first + row;
    if (column->validity.obj != NULL && !(((bytes_t)column->validity.buf)[place >> 3] >> (place & 7) & 1)) return piece;
    int64_t start = offset_at(column, place), end = offset_at(column, place + 1);
    if (start < 0 || end < start || end > column->data.len) {
        PyErr_Format(state->bad_column, "%s of row %zd lies outside of its buffer", name, row);
        piece.kind = WRONG;
        return piece;
    }
    return (piece_t){(bytes_t)column->data.buf + start, (size_t)(end - start), column->is_text ? TEXT : BYTES};
}

/* A column of numbers as plain memory; `rows` is how many there must be at least. */
static int numbers_open(state_t *state, PyObject *given, Py_ssize_t width, Py_ssize_t rows, const char *name,
                        Py_buffer *view) {
    memset(view, 0, sizeof *view);
    if (given == Py_None) return 0;
    if (PyObject_GetBuffer(given, view, PyBUF_SIMPLE) < 0) return -1;
    if (view->len / width >= rows) return 0;
    PyErr_Format(state->bad_column, "%s has fewer than %zd rows", name, rows);
    PyBuffer_Release(view);
    return -1;
}

static int32_t int32_at(const Py_buffer *view, Py_ssize_t place) {
    int32_t found;
    memcpy(&found, (const char *)view->buf + 4 * place, 4);
    return found;
}

static int64_t int64_at(const Py_buffer *view, Py_ssize_t place) {
    int64_t found;
    memcpy(&found, (const char *)view->buf + 8 * place, 8);
    return found;
}

/* --------------------------------------------------------------------------------------------------------- packing */

typedef struct {
    state_t *state;
    column_t values, keys, names, texts;
    Py_buffer base64, times, sequences, order, pair_offsets;
    Py_ssize_t rows;
    int64_t first;
} packing_t;

/* What one record is made of. */
typedef struct {
    piece_t key, value;
    size_t key_bytes, pair_bytes, head_bytes;
    int64_t time, sequence;
    Py_ssize_t row;
    int32_t pair_from, pair_to;
    int is_base64, encodes;
} record_t;

static size_t varint_bytes(uint64_t value) {
    size_t bytes = 1;
    while (value > 127) value >>= 7, bytes++;
    return bytes;
}

static uint8_t *put_varint(uint8_t *at, uint64_t value) {
    while (value > 127) *at++ = (uint8_t)(value | 128), value >>= 7;
    *at++ = (uint8_t)value;
    return at;
}

static uint8_t *put_text(uint8_t *at, uint8_t tag, bytes_t data, size_t size) {
    *at++ = tag;
    at = put_varint(at, size);
    if (size) memcpy(at, data, size);
    return at + size;
}

static uint8_t *put_base64(uint8_t *at, bytes_t data, size_t size) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (; size >= 3; size -= 3, data += 3) {
        uint32_t three = (uint32_t)data[0] << 16 | (uint32_t)data[1] << 8 | data[2];
        *at++ = (uint8_t)letters[three >> 18];
        *at++ = (uint8_t)letters[three >> 12 & 63];
        *at++ = (uint8_t)letters[three >> 6 & 63];
        *at++ = (uint8_t)letters[three & 63];
    }
    if (size) {
        uint32_t rest = (uint32_t)data[0] << 16 | (size == 2 ? (uint32_t)data[1] << 8 : 0);
        *at++ = (uint8_t)letters[rest >> 18];
        *at++ = (uint8_t)letters[rest >> 12 & 63];
        *at++ = size == 2 ? (uint8_t)letters[rest >> 6 & 63] : '=';
        *at++ = '=';
    }
    return at;
}

static size_t text_bytes(size_t size) { return 1 + varint_bytes(size) + size; }

/* Sizes of the pairs of a row; -1: an error is set. */
static int measure_pairs(const packing_t *of, record_t *record) {
    record->pair_from = int32_at(&of->pair_offsets, record->row);
    record->pair_to = int32_at(&of->pair_offsets, record->row + 1);
    if (record->pair_from < 0 || record->pair_to < record->pair_from || record->pair_to > of->names.rows ||
        record->pair_to > of->texts.rows) {
        PyErr_Format(of->state->bad_column, "properties of row %zd lie outside of their columns", record->row);
        return -1;
    }
    for (int32_t index = record->pair_from; index < record->pair_to; index++) {
        piece_t name = column_get(of->state, &of->names, index, "property", 1);
        if (name.kind == WRONG) return -1;
        piece_t text = column_get(of->state, &of->texts, index, "property", 1);
        if (text.kind == WRONG) return -1;
        record->pair_bytes += text_bytes(text_bytes(name.size) + text_bytes(text.size));
    }
    return 0;
}

/* Everything about row number `place` of the order but its bytes; -1: an error is set. */
static int measure(const packing_t *of, Py_ssize_t place, record_t *record) {
    memset(record, 0, sizeof *record);
    Py_ssize_t row = of->order.obj == NULL ? place : int32_at(&of->order, place);
    if (row < 0 || row >= of->rows) {
        PyErr_Format(of->state->bad_column, "there is no row %zd", row);
        return -1;
    }
    record->row = row;
    record->value = column_get(of->state, &of->values, row, "value", 0);
    if (record->value.kind == WRONG) return -1;
    if (record->value.size > INT32_MAX) {
        PyErr_Format(of->state->bad_column, "value of row %zd has %zu bytes", row, record->value.size);
        return -1;
    }
    record->time = of->times.obj == NULL ? 0 : int64_at(&of->times, row);
    record->sequence = of->sequences.obj == NULL ? (int64_t)((uint64_t)of->first + (uint64_t)row)
                                                 : int64_at(&of->sequences, row);
    if (of->keys.is_there) {
        record->key = column_get(of->state, &of->keys, row, "key", 1);
        if (record->key.kind == WRONG) return -1;
        if (record->key.size > INT32_MAX / 2) {
            PyErr_Format(of->state->bad_column, "key of row %zd has %zu bytes", row, record->key.size);
            return -1;
        }
        record->encodes = record->key.kind == BYTES;
        record->is_base64 = record->encodes || (of->base64.obj != NULL &&
                                                (((bytes_t)of->base64.buf)[row >> 3] >> (row & 7) & 1));
        record->key_bytes = record->encodes ? (record->key.size + 2) / 3 * 4 : record->key.size;
        if (record->key.kind != MISSING) record->head_bytes += text_bytes(record->key_bytes);
    }
    if (of->pair_offsets.obj != NULL && measure_pairs(of, record) < 0) return -1;
    record->head_bytes += record->pair_bytes + 1 + varint_bytes(record->value.size);
    if (record->time) record->head_bytes += 1 + varint_bytes((uint64_t)record->time);
    if (record->is_base64) record->head_bytes += 2;
    if (record->sequence != NO_SEQUENCE) record->head_bytes += 1 + varint_bytes((uint64_t)record->sequence);
    if (record->value.kind == MISSING) record->head_bytes += 2;
    return 0;
}

/* The record, as long as `measure` said; NULL: an error is set. */
static uint8_t *put_record(const packing_t *of, const record_t *record, uint8_t *at) {
    uint32_t head = (uint32_t)record->head_bytes;
    *at++ = (uint8_t)(head >> 24), *at++ = (uint8_t)(head >> 16), *at++ = (uint8_t)(head >> 8), *at++ = (uint8_t)head;
    for (int32_t index = record->pair_from; index < record->pair_to; index++) {
        piece_t name = column_get(of->state, &of->names, index, "property", 1);
        piece_t text = column_get(of->state, &of->texts, index, "property", 1);
        *at++ = 0x0a;
        at = put_varint(at, text_bytes(name.size) + text_bytes(text.size));
        at = put_text(at, 0x0a, name.at, name.size);
        at = put_text(at, 0x12, text.at, text.size);
    }
    if (record->encodes) {
        *at++ = 0x12;
        at = put_varint(at, record->key_bytes);
        at = put_base64(at, record->key.at, record->key.size);
    } else if (record->key.kind != MISSING) {
        at = put_text(at, 0x12, record->key.at, record->key.size);
    }
    *at++ = 0x18;
    at = put_varint(at, record->value.size);
    if (record->time) *at++ = 0x28, at = put_varint(at, (uint64_t)record->time);
    if (record->is_base64) *at++ = 0x30, *at++ = 1;
    if (record->sequence != NO_SEQUENCE) *at++ = 0x40, at = put_varint(at, (uint64_t)record->sequence);
    if (record->value.kind == MISSING) *at++ = 0x48, *at++ = 1;
    if (record->value.size) memcpy(at, record->value.at, record->value.size);
    return at + record->value.size;
}

/* The next batch from `place` on: its body, and where the following one begins. */
static PyObject *pack_batch(const packing_t *of, Py_ssize_t *place, Py_ssize_t end, Py_ssize_t messages_max,
                            Py_ssize_t bytes_max) {
    Py_ssize_t start = *place, stop = start;
    size_t size = 0;
    int64_t lowest = 0, highest = 0;
    record_t record;
    for (; stop < end; stop++) {
        if (measure(of, stop, &record) < 0) return NULL;
        size_t length = 4 + record.head_bytes + record.value.size;
        if (stop > start && (stop - start >= messages_max || size + length > (size_t)bytes_max)) break;
        if (stop == start) lowest = record.sequence;
        highest = record.sequence;
        size += length;
    }
    uint8_t *at;
    PyObject *body = new_bytes(size, &at);
    if (body == NULL) return NULL;
    for (Py_ssize_t index = start; index < stop; index++) {
        measure(of, index, &record); /* it could be measured before, and nothing has changed */
        at = put_record(of, &record, at);
    }
    *place = stop;
    return Py_BuildValue("NnnLL", body, start, stop - start, (long long)lowest, (long long)highest);
}

static PyObject *pack_batches(const packing_t *of, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t messages_max,
                              Py_ssize_t bytes_max) {
    Py_ssize_t most = of->order.obj == NULL ? of->rows : of->order.len / 4;
    if (begin < 0 || end < begin || end > most || bytes_max < 0) {
        PyErr_Format(of->state->bad_column, "rows %zd to %zd are not within %zd", begin, end, most);
        return NULL;
    }
    PyObject *batches = PyList_New(0);
    while (batches != NULL && begin < end) {
        PyObject *batch = pack_batch(of, &begin, end, messages_max, bytes_max);
        if (batch == NULL || PyList_Append(batches, batch) < 0) Py_CLEAR(batches);
        Py_XDECREF(batch);
    }
    return batches;
}

static PyObject *pack(PyObject *module, PyObject *arguments) {
    PyObject *values, *keys, *base64, *times, *pairs, *sequences, *order;
    PyObject *pair_offsets = Py_None, *names = Py_None, *texts = Py_None, *answer = NULL;
    Py_ssize_t begin, end, messages_max, bytes_max;
    long long first;
    packing_t of;
    memset(&of, 0, sizeof of);
    of.state = state_of(module);
    if (!PyArg_ParseTuple(arguments, "OOOOOLOOnnnn", &values, &keys, &base64, &times, &pairs, &first, &sequences, &order,
                          &begin, &end, &messages_max, &bytes_max))
        return NULL;
    if (pairs != Py_None && !PyArg_ParseTuple(pairs, "OOO", &pair_offsets, &names, &texts)) return NULL;
    of.first = first;
    if (column_open(of.state, values, "values", &of.values) < 0) return NULL;
    of.rows = of.values.rows;
    if (column_open(of.state, keys, "keys", &of.keys) == 0) {
        if (of.keys.is_there && of.keys.rows != of.rows)
            PyErr_Format(of.state->bad_column, "keys has %zd rows, expected %zd", of.keys.rows, of.rows);
        else if (column_open(of.state, names, "names", &of.names) == 0 &&
                 column_open(of.state, texts, "texts", &of.texts) == 0 &&
                 numbers_open(of.state, base64, 1, (of.rows + 7) / 8, "key_is_base64", &of.base64) == 0 &&
                 numbers_open(of.state, times, 8, of.rows, "event_times", &of.times) == 0 &&
                 numbers_open(of.state, sequences, 8, of.rows, "sequence_ids", &of.sequences) == 0 &&
                 numbers_open(of.state, order, 4, 0, "order", &of.order) == 0 &&
                 numbers_open(of.state, pair_offsets, 4, of.rows + 1, "properties", &of.pair_offsets) == 0)
            answer = pack_batches(&of, begin, end, messages_max, bytes_max);
    }
    column_t *columns[] = {&of.values, &of.keys, &of.names, &of.texts};
    Py_buffer *views[] = {&of.base64, &of.times, &of.sequences, &of.order, &of.pair_offsets};
    for (size_t index = 0; index < sizeof columns / sizeof *columns; index++) column_close(columns[index]);
    for (size_t index = 0; index < sizeof views / sizeof *views; index++) PyBuffer_Release(views[index]);
    return answer;
}

/* --------------------------------------------------------------------------------------------------------- routing */

static PyObject *arranged(PyObject *module, PyObject *arguments) {
    state_t *state = state_of(module);
    PyObject *segments, *order = NULL, *starts = NULL;
    Py_ssize_t count;
    Py_buffer view;
    if (!PyArg_ParseTuple(arguments, "On", &segments, &count)) return NULL;
    if (PyObject_GetBuffer(segments, &view, PyBUF_SIMPLE) < 0) return NULL;
    Py_ssize_t rows = view.len / 4, kept = 0;
    Py_ssize_t *ends = count < 0 || count > INT32_MAX ? NULL : calloc((size_t)count + 1, sizeof(Py_ssize_t));
    if (ends == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t row = 0; row < rows; row++) {
        int32_t segment = int32_at(&view, row);
        if (segment >= count) {
            PyErr_Format(state->bad_column, "segment %d of row %zd is not below %zd", (int)segment, row, count);
            goto done;
        }
        if (segment >= 0) ends[segment + 1]++, kept++;
    }
    starts = PyList_New(count + 1);
    for (Py_ssize_t segment = 0; starts != NULL && segment <= count; segment++) {
        if (segment) ends[segment] += ends[segment - 1];
        PyObject *start = PyLong_FromSsize_t(ends[segment]);
        if (start == NULL || PyList_SetItem(starts, segment, start) < 0) Py_CLEAR(starts);
    }
    int32_t *at;
    if (starts != NULL && (order = new_bytes(4 * (size_t)kept, &at)) != NULL)
        for (Py_ssize_t row = 0; row < rows; row++) {
            int32_t segment = int32_at(&view, row);
            if (segment >= 0) at[ends[segment]++] = (int32_t)row;
        }
done:
    free(ends);
    PyBuffer_Release(&view);
    if (order == NULL) {
        Py_XDECREF(starts);
        return NULL;
    }
    return Py_BuildValue("NN", order, starts);
}

static uint32_t turned(uint32_t value, int bits) { return value << bits | value >> (32 - bits); }

/* murmur3, 32 bits, seed 0 */
static uint32_t murmur3(bytes_t at, size_t size) {
    uint32_t hash = 0, block;
    size_t left = size;
    for (; left >= 4; left -= 4, at += 4) {
        block = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        hash ^= turned(block * 0xcc9e2d51u, 15) * 0x1b873593u;
        hash = turned(hash, 13) * 5 + 0xe6546b64u;
    }
    block = 0;
    if (left == 3) block ^= (uint32_t)at[2] << 16;
    if (left >= 2) block ^= (uint32_t)at[1] << 8;
    if (left >= 1) hash ^= turned((block ^ at[0]) * 0xcc9e2d51u, 15) * 0x1b873593u;
    hash ^= (uint32_t)size;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    return hash ^ hash >> 16;
}

static PyObject *key_hashes(PyObject *module, PyObject *keys) {
    state_t *state = state_of(module);
    column_t column;
    if (column_open(state, keys, "keys", &column) < 0) return NULL;
    uint32_t *at;
    PyObject *made = new_bytes(4 * (size_t)column.rows, &at);
    for (Py_ssize_t row = 0; made != NULL && row < column.rows; row++) {
        piece_t key = column_get(state, &column, row, "key", 1);
        if (key.kind == WRONG) Py_CLEAR(made);
        else at[row] = key.kind == MISSING ? 0 : murmur3(key.at, key.size);
    }
    column_close(&column);
    return made;
}

/* How many borders are not above the position, less one. */
static int32_t segment_at(const Py_buffer *borders, Py_ssize_t count, int32_t position) {
    Py_ssize_t low = 0, high = count;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        if (int32_at(borders, middle) > position) high = middle;
        else low = middle + 1;
    }
    return (int32_t)low - 1;
}

enum { MOD_N, LOW_HALF, HIGH_HALF };

static PyObject *route(PyObject *module, PyObject *arguments) {
    state_t *state = state_of(module);
    PyObject *keys, *borders, *sequences, *made = NULL;
    Py_buffer border_view, sequence_view;
    column_t column;
    long long first;
    int kind;
    if (!PyArg_ParseTuple(arguments, "OiOLO", &keys, &kind, &borders, &first, &sequences)) return NULL;
    if (column_open(state, keys, "keys", &column) < 0) return NULL;
    if (numbers_open(state, borders, 4, 1, "borders", &border_view) == 0) {
        if (numbers_open(state, sequences, 8, column.rows, "sequence_ids", &sequence_view) == 0) {
            Py_ssize_t count = border_view.len / 4;
            int32_t *at;
            made = new_bytes(4 * (size_t)column.rows, &at);
            for (Py_ssize_t row = 0; made != NULL && row < column.rows; row++) {
                piece_t key = column_get(state, &column, row, "key", 1);
                if (key.kind == WRONG) {
                    Py_CLEAR(made);
                } else if (key.kind == MISSING) {
                    uint64_t sequence = sequence_view.obj == NULL ? (uint64_t)first + (uint64_t)row
                                                                  : (uint64_t)int64_at(&sequence_view, row);
                    /* model/routing.py: consecutive ids lie far apart, and 65536 of them hit each position */
                    at[row] = kind == MOD_N ? (int32_t)(sequence % (uint64_t)count)
                                            : segment_at(&border_view, count, (int32_t)(sequence * 40503u & 0xFFFF));
                } else {
                    uint32_t hash = murmur3(key.at, key.size);
                    at[row] = kind == MOD_N ? (int32_t)((hash & 0x7FFFFFFF) % (uint64_t)count)
                                            : segment_at(&border_view, count,
                                                         (int32_t)(kind == LOW_HALF ? hash & 0xFFFF : hash >> 16));
                }
            }
            PyBuffer_Release(&sequence_view);
        }
        PyBuffer_Release(&border_view);
    }
    column_close(&column);
    return made;
}

/* ---------------------------------------------------------------------------------------------------------- module */

static PyObject *imported(const char *module, const char *name) {
    PyObject *from = PyImport_ImportModule(module);
    PyObject *found = from == NULL ? NULL : PyObject_GetAttrString(from, name);
    Py_XDECREF(from);
    return found;
}

static int start(PyObject *module) {
    state_t *state = state_of(module);
    state->bad_entry = imported("anabranch.protocol.errors", "BadEntry");
    state->run_too_large = imported("anabranch.protocol.errors", "RunTooLarge");
    state->bad_column = imported("anabranch.protocol.codec.column", "BadColumn");
    return state->bad_entry == NULL || state->run_too_large == NULL || state->bad_column == NULL ? -1 : 0;
}

static int visit_state(PyObject *module, visitproc visit, void *arg) {
    state_t *state = state_of(module);
    if (state == NULL) return 0;
    Py_VISIT(state->bad_entry);
    Py_VISIT(state->run_too_large);
    Py_VISIT(state->bad_column);
    return 0;
}

static int clear_state(PyObject *module) {
    state_t *state = state_of(module);
    if (state == NULL) return 0;
    Py_CLEAR(state->bad_entry);
    Py_CLEAR(state->run_too_large);
    Py_CLEAR(state->bad_column);
    return 0;
}

static void free_state(void *module) { clear_state((PyObject *)module); }

static PyMethodDef methods[] = {
    {"decode", decode, METH_O, "Bodies of batches to the parts of Columns."},
    {"counted", counted, METH_VARARGS, "How many messages a body has that keeps to its layout."},
    {"values_of", values_of, METH_VARARGS, "The values of a body, a list."},
    {"keys_of", keys_of, METH_VARARGS, "Its keys as they travel, and which of them are base64."},
    {"listed", listed, METH_VARARGS, "All of it as lists: the parts of a Listing."},
    {"pack", pack, METH_VARARGS, "Rows to bodies of batches."},
    {"arranged", arranged, METH_VARARGS, "Row numbers ordered by segment, and where each segment begins."},
    {"route", route, METH_VARARGS, "The segment of each row."},
    {"key_hashes", key_hashes, METH_O, "murmur3 of each key."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "anabranch.protocol.codec._native", "The inner loops of anabranch.protocol.codec.", sizeof(state_t),
    methods,               slots,                     visit_state,                           clear_state,
    free_state,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
