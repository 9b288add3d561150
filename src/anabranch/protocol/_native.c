/* The loops of publishing and delivery that run once per entry, in C: finding plain SENDs in received bytes, writing
 * their receipts, and writing the heads of MESSAGE frames.
 *
 * `sends` takes only frames that it decodes completely: a whole frame with a SEND of producer, sequence ids and number
 * of messages only, and an entry with a checksum (which is not checked here). Any other frame is left to Python
 * (frames.py, commands.py), which also reports errors. `receipts` writes the frames of commands.receipt_frame
 * consecutively, `message_run` the result of messages.PlainRuns. tests/property/protocol/test_native.py compares all of
 * them with the Python loops.
 *
 * Rules: input is not trusted; every length is compared with what is left before it is used.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>

typedef const uint8_t *bytes_t;

#define SIZES_BYTES 8
#define MAGIC_BYTES 6 /* of an entry with a checksum: 0x0e01 and the checksum */
#define RECEIPT_BYTES_MAX 96
#define MESSAGE_HEAD_BYTES_MAX 96

typedef struct {
    uint64_t producer, sequence, highest;
    int32_t messages;
} send_t;

static uint32_t read_u32(bytes_t at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | (uint32_t)at[3];
}

/* NULL: it does not end before `end`, or has more than 64 bits. */
static bytes_t read_varint(bytes_t at, bytes_t end, uint64_t *value) {
    uint64_t found = 0;
    for (int shift = 0; shift < 70 && at < end; shift += 7) {
        uint8_t one = *at++;
        if (shift == 63 && one > 1) return NULL;
        found |= (uint64_t)(one & 127) << shift;
        if (one < 128) {
            *value = found;
            return at;
        }
    }
    return NULL;
}

/* Is this command a SEND with nothing in it that needs more than these four numbers? */
static int read_send(bytes_t at, bytes_t end, send_t *send) {
    int has_producer = 0, has_sequence = 0;
    if (end - at < 4 || at[0] != 0x08 || at[1] != 6 || at[2] != 0x32 || at[3] > 127 || end - at - 4 != at[3]) return 0;
    send->highest = 0;
    send->messages = 1;
    for (at += 4; at < end;) {
        uint8_t tag = *at++;
        uint64_t value;
        at = read_varint(at, end, &value);
        if (at == NULL) return 0;
        switch (tag) {
        case 0x08:
            send->producer = value;
            has_producer = 1;
            break;
        case 0x10:
            send->sequence = value;
            has_sequence = 1;
            break;
        case 0x18:
            if (value > INT32_MAX) return 0;
            send->messages = (int32_t)value;
            break;
        case 0x30:
            send->highest = value;
            break;
        default:
            return 0;
        }
    }
    return has_producer && has_sequence;
}

static PyObject *tuple_of(const send_t *send, Py_ssize_t body, Py_ssize_t after) {
    PyObject *items[6] = {
        PyLong_FromUnsignedLongLong(send->producer), PyLong_FromUnsignedLongLong(send->sequence),
        PyLong_FromUnsignedLongLong(send->highest),  PyLong_FromLong(send->messages),
        PyLong_FromSsize_t(body),                    PyLong_FromSsize_t(after),
    };
    PyObject *made = PyTuple_New(6);
    for (int i = 0; i < 6; i++) {
        if (made != NULL && items[i] != NULL) {
            PyTuple_SetItem(made, i, items[i]);
        } else {
            Py_XDECREF(items[i]);
            Py_CLEAR(made);
        }
    }
    return made;
}

static PyObject *sends(PyObject *module, PyObject *args) {
    PyObject *data;
    Py_ssize_t start, end, limit;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "Onnn", &data, &start, &end, &limit)) return NULL;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *found = NULL;
    if (start < 0 || end < start || end > view.len) {
        PyErr_SetString(PyExc_ValueError, "outside of the buffer");
    } else {
        found = PyList_New(0);
    }
    bytes_t base = view.buf;
    while (found != NULL && end - start > SIZES_BYTES) {
        uint64_t total = read_u32(base + start), command = read_u32(base + start + 4);
        if (total + 4 > (uint64_t)limit || command + 4 > total || total + 4 > (uint64_t)(end - start)) break;
        Py_ssize_t body = start + SIZES_BYTES + (Py_ssize_t)command, after = start + 4 + (Py_ssize_t)total;
        send_t send;
        if (after - body < MAGIC_BYTES || base[body] != 0x0e || base[body + 1] != 0x01) break;
        if (!read_send(base + start + SIZES_BYTES, base + body, &send)) break;
        PyObject *item = tuple_of(&send, body, after);
        if (item == NULL || PyList_Append(found, item) < 0) Py_CLEAR(found);
        Py_XDECREF(item);
        start = after;
    }
    PyBuffer_Release(&view);
    return found;
}

static uint8_t *write_varint(uint8_t *at, uint64_t value) {
    while (value > 127) {
        *at++ = (uint8_t)(value & 127) | 128;
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

static uint8_t *write_u32(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
    return at + 4;
}

static uint8_t *write_field(uint8_t *at, uint8_t tag, uint64_t value) {
    *at++ = tag;
    return write_varint(at, value);
}

/* Lengths of all parts are below 128 (see RECEIPT_BYTES_MAX), so one byte says each. */
static uint8_t *write_receipt(
    uint8_t *at, uint64_t producer, uint64_t sequence, uint64_t ledger, uint64_t entry, long partition, uint64_t highest
) {
    uint8_t *frame = at;
    uint8_t *command = frame + SIZES_BYTES;
    command[0] = 0x08;
    command[1] = 7;
    command[2] = 0x3a;
    at = write_field(command + 4, 0x08, producer);
    at = write_field(at, 0x10, sequence);
    at[0] = 0x1a;
    uint8_t *identity = at + 2;
    uint8_t *after = write_field(identity, 0x08, ledger);
    after = write_field(after, 0x10, entry);
    if (partition >= 0) after = write_field(after, 0x18, (uint64_t)partition);
    at[1] = (uint8_t)(after - identity);
    at = write_field(after, 0x20, highest);
    command[3] = (uint8_t)(at - command - 4);
    uint32_t size = (uint32_t)(at - command);
    write_u32(write_u32(frame, size + 4), size);
    return at;
}

static PyObject *receipts(PyObject *module, PyObject *args) {
    unsigned long long producer, ledger, entry;
    long partition;
    PyObject *publishes;
    if (!PyArg_ParseTuple(args, "KKKlO", &producer, &ledger, &entry, &partition, &publishes)) return NULL;
    Py_ssize_t count = PySequence_Size(publishes);
    if (count < 0) return NULL;
    uint8_t *room = malloc((size_t)count * RECEIPT_BYTES_MAX + 1);
    if (room == NULL) return PyErr_NoMemory();
    uint8_t *at = room;
    PyObject *made = NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *publish = PySequence_GetItem(publishes, i);
        if (publish == NULL) goto end;
        unsigned long long numbers[2] = {0, 0};
        for (int n = 0; n < 2 && !PyErr_Occurred(); n++) {
            PyObject *number = PyTuple_GetItem(publish, n + 1); /* borrowed */
            if (number != NULL) numbers[n] = PyLong_AsUnsignedLongLong(number);
        }
        Py_DECREF(publish);
        if (PyErr_Occurred()) goto end;
        at = write_receipt(at, producer, numbers[0], ledger, entry + (uint64_t)i, partition, numbers[1]);
    }
    made = PyBytes_FromStringAndSize((const char *)room, at - room);
end:
    free(room);
    return made;
}

/* All of a plain MESSAGE frame but its payload. Lengths of all parts are below 128, so one byte says each. */
static uint8_t *write_head(
    uint8_t *frame, uint64_t consumer, uint64_t ledger, uint64_t entry, long partition, uint32_t payload_bytes
) {
    uint8_t *command = frame + SIZES_BYTES;
    command[0] = 0x08;
    command[1] = 9;
    command[2] = 0x4a;
    uint8_t *at = write_field(command + 4, 0x08, consumer);
    at[0] = 0x12;
    uint8_t *identity = at + 2;
    uint8_t *after = write_field(identity, 0x08, ledger);
    after = write_field(after, 0x10, entry);
    if (partition >= 0) after = write_field(after, 0x18, (uint64_t)partition);
    at[1] = (uint8_t)(after - identity);
    command[3] = (uint8_t)(after - command - 4);
    uint32_t size = (uint32_t)(after - command);
    write_u32(write_u32(frame, size + 4 + payload_bytes), size);
    return after;
}

typedef struct {
    unsigned long long ledger, entry;
    long long messages;
    PyObject *position, *payload; /* borrowed of the entry */
    Py_ssize_t bytes;
} entry_t;

/* ((ledger, entry), messages, payload, ...); 0: it is something else, and an error was raised. */
static int read_entry(PyObject *from, entry_t *entry) {
    PyObject *parts[3], *numbers[2];
    for (int i = 0; i < 3; i++) {
        if ((parts[i] = PyTuple_GetItem(from, i)) == NULL) return 0;
    }
    for (int i = 0; i < 2; i++) {
        if ((numbers[i] = PyTuple_GetItem(parts[0], i)) == NULL) return 0;
    }
    entry->ledger = PyLong_AsUnsignedLongLong(numbers[0]);
    if (PyErr_Occurred()) return 0;
    entry->entry = PyLong_AsUnsignedLongLong(numbers[1]);
    if (PyErr_Occurred()) return 0;
    entry->messages = PyLong_AsLongLong(parts[1]);
    if (PyErr_Occurred()) return 0;
    entry->position = parts[0];
    entry->payload = parts[2];
    entry->bytes = PyObject_Size(entry->payload);
    if (entry->bytes > INT32_MAX) PyErr_SetString(PyExc_OverflowError, "an entry that no frame can hold");
    return !PyErr_Occurred();
}

static PyObject *message_run(PyObject *module, PyObject *args) {
    unsigned long long consumer;
    long partition;
    long long bytes_max, messages_max, wire = 0, bytes = 0, total = 0, each = -1;
    Py_ssize_t start;
    PyObject *entries;
    if (!PyArg_ParseTuple(
            args, "KlO!nLL", &consumer, &partition, &PyList_Type, &entries, &start, &bytes_max, &messages_max
        ))
        return NULL;
    if (start < 0) {
        PyErr_SetString(PyExc_ValueError, "before the first entry");
        return NULL;
    }
    PyObject *out = PyList_New(0), *positions = PyList_New(0);
    if (out == NULL || positions == NULL) goto failed;
    for (Py_ssize_t i = start; i < PyList_Size(entries) && bytes < bytes_max && total < messages_max; i++) {
        uint8_t room[MESSAGE_HEAD_BYTES_MAX];
        entry_t entry;
        PyObject *held = PyList_GetItem(entries, i), *head = NULL;
        Py_XINCREF(held);
        if (held != NULL && read_entry(held, &entry)) {
            uint8_t *end = write_head(room, consumer, entry.ledger, entry.entry, partition, (uint32_t)entry.bytes);
            head = PyBytes_FromStringAndSize((const char *)room, end - room);
            wire += end - room + entry.bytes;
        }
        int is_added = head != NULL && PyList_Append(out, head) == 0 && PyList_Append(out, entry.payload) == 0 &&
                       PyList_Append(positions, entry.position) == 0;
        Py_XDECREF(head);
        Py_XDECREF(held);
        if (!is_added) goto failed;
        bytes += entry.bytes;
        total += entry.messages;
        each = i == start || each == entry.messages ? entry.messages : -1;
    }
    return Py_BuildValue("NNLLLL", out, positions, wire, bytes, total, each);
failed:
    Py_XDECREF(out);
    Py_XDECREF(positions);
    return NULL;
}

static PyMethodDef methods[] = {
    {"sends", sends, METH_VARARGS, "The plain SENDs at the start of a buffer."},
    {"receipts", receipts, METH_VARARGS, "SEND_RECEIPT frames, one behind the other."},
    {"message_run", message_run, METH_VARARGS, "Heads and payloads of MESSAGE frames, in turn."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "anabranch.protocol._native", "The loops of publishing and delivery.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
