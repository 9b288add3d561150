/* The loop of every catch-up read, in C: finds consecutive entries in a block of a ledger file, and checks them.
 *
 * `sound_run` has exactly the results of record_runs.plain_run; tests/property/storage/test_native.py compares them. A
 * damaged or truncated record ends a run here, and record_scanner.py handles it.
 *
 * The checksum is computed by the processor's own instruction, three streams at a time: one result takes three cycles
 * and a new one can begin in each. Without that instruction the module refuses to be loaded, and Python is
 * used: the crc32c package knows more processors than this file does.
 *
 * Rules: input is not trusted; every length is compared with what is left before it is used. The interpreter is kept: a
 * block takes less than a tenth of a millisecond.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef const uint8_t *bytes_t;

#define HEADER_BYTES 40 /* crc32c u32 | length u32 | ledger u64 | entry u64 | offset u64 | messages u32 | stamp u32 */
#define CRC_BYTES 4

#if defined(__x86_64__) && defined(__GNUC__)

#define WITH_CRC __attribute__((target("sse4.2")))
#define LONG_STRIDE 1024
#define SHORT_STRIDE 128

/* What so many zero bytes behind it make of a checksum, byte by byte of it: it is linear, so four look-ups and XOR. */
typedef uint32_t shift_t[4][256];
static shift_t over_long, over_short;

static uint64_t load_u64(bytes_t at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static int has_crc(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}

WITH_CRC static void fill_shift(shift_t table, size_t zeros) {
    for (int byte = 0; byte < 4; byte++) {
        for (int value = 0; value < 256; value++) {
            uint64_t crc = (uint64_t)value << 8 * byte;
            for (size_t done = 0; done < zeros; done += 8) crc = __builtin_ia32_crc32di(crc, 0);
            table[byte][value] = (uint32_t)crc;
        }
    }
}

static uint32_t shifted(shift_t table, uint64_t crc) {
    return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255] ^ table[3][crc >> 24 & 255];
}

/* As many groups of three strides as there are; where it ends. */
WITH_CRC static bytes_t crc_strides(uint64_t *crc, bytes_t at, bytes_t end, ptrdiff_t stride, shift_t over) {
    uint64_t first = *crc;
    while (end - at >= 3 * stride) {
        uint64_t second = 0, third = 0;
        for (bytes_t stop = at + stride; at < stop; at += 8) {
            first = __builtin_ia32_crc32di(first, load_u64(at));
            second = __builtin_ia32_crc32di(second, load_u64(at + stride));
            third = __builtin_ia32_crc32di(third, load_u64(at + 2 * stride));
        }
        first = shifted(over, first) ^ second;
        first = shifted(over, first) ^ third;
        at += 2 * stride;
    }
    *crc = first;
    return at;
}

WITH_CRC static uint32_t crc32c(bytes_t at, size_t size) {
    uint64_t crc = 0xffffffff;
    bytes_t end = at + size;
    at = crc_strides(&crc, at, end, LONG_STRIDE, over_long);
    at = crc_strides(&crc, at, end, SHORT_STRIDE, over_short);
    for (; end - at >= 8; at += 8) crc = __builtin_ia32_crc32di(crc, load_u64(at));
    for (; at < end; at++) crc = __builtin_ia32_crc32qi((uint32_t)crc, *at);
    return (uint32_t)crc ^ 0xffffffff;
}

static void prepare_crc(void) {
    fill_shift(over_long, LONG_STRIDE);
    fill_shift(over_short, SHORT_STRIDE);
}

#else

static int has_crc(void) { return 0; }
static void prepare_crc(void) {}
static uint32_t crc32c(bytes_t at, size_t size) { return (void)at, (uint32_t)size; } /* never called: see prepare */

#endif

static uint32_t read_u32(bytes_t at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t read_u64(bytes_t at) { return read_u32(at) | (uint64_t)read_u32(at + 4) << 32; }

/* A tuple of a subclass; takes over the items, of which a missing one is an error that was raised already. */
static PyObject *tuple_of(PyTypeObject *type, int count, PyObject **items) {
    PyObject *made = PyType_GenericAlloc(type, count);
    for (int i = 0; i < count; i++) {
        if (made != NULL && items[i] != NULL) {
            PyTuple_SetItem(made, i, items[i]);
        } else {
            Py_XDECREF(items[i]);
            Py_CLEAR(made);
        }
    }
    return made;
}

static PyObject *entry_of(
    PyTypeObject *entry_type, PyTypeObject *position_type, PyObject *ledger, uint64_t entry, uint32_t messages,
    PyObject *payload
) {
    Py_INCREF(ledger);
    Py_INCREF(Py_None);
    PyObject *place[2] = {ledger, PyLong_FromUnsignedLongLong(entry)};
    PyObject *parts[4] = {tuple_of(position_type, 2, place), PyLong_FromUnsignedLong(messages), payload, Py_None};
    return tuple_of(entry_type, 4, parts);
}

static int is_tuple_type(PyObject *type) {
    return PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type);
}

static PyObject *sound_run(PyObject *module, PyObject *args) {
    PyObject *block, *entry_type, *position_type;
    long long offset, first, end, bytes_max;
    unsigned long long ledger;
    Py_buffer view;
    if (!PyArg_ParseTuple(
            args, "OLKLLLOO", &block, &offset, &ledger, &first, &end, &bytes_max, &entry_type, &position_type
        ))
        return NULL;
    if (!is_tuple_type(entry_type) || !is_tuple_type(position_type)) {
        PyErr_SetString(PyExc_TypeError, "entries and positions are tuples");
        return NULL;
    }
    if (PyObject_GetBuffer(block, &view, PyBUF_SIMPLE) < 0) return NULL;
    bytes_t base = view.buf;
    uint64_t at = 0, whole = (uint64_t)view.len;
    int64_t room = bytes_max;
    int is_first = 1;
    PyObject *found = PyList_New(0), *number = PyLong_FromUnsignedLongLong(ledger), *views = PyMemoryView_FromObject(block);
    if (found == NULL || number == NULL || views == NULL) Py_CLEAR(found);
    for (; found != NULL && first < end && whole - at >= HEADER_BYTES; first++) {
        bytes_t head = base + at;
        uint64_t body = at + HEADER_BYTES, length = read_u32(head + 4);
        if (read_u64(head + 8) != ledger || read_u64(head + 16) != (uint64_t)first) break;
        if (read_u64(head + 24) != (uint64_t)offset + at || length > whole - body) break;
        room -= (int64_t)length;
        if (room < 0 && !is_first) break;
        if (crc32c(head + CRC_BYTES, HEADER_BYTES - CRC_BYTES + length) != read_u32(head)) break;
        PyObject *payload = PySequence_GetSlice(views, (Py_ssize_t)body, (Py_ssize_t)(body + length));
        PyObject *entry = entry_of(
            (PyTypeObject *)entry_type, (PyTypeObject *)position_type, number, (uint64_t)first, read_u32(head + 32), payload
        );
        if (entry == NULL || PyList_Append(found, entry) < 0) Py_CLEAR(found);
        Py_XDECREF(entry);
        is_first = 0;
        at = body + length;
    }
    Py_XDECREF(number);
    Py_XDECREF(views);
    PyBuffer_Release(&view);
    return found == NULL ? NULL : Py_BuildValue("NL", found, offset + (long long)at);
}

static PyObject *checksum(PyObject *module, PyObject *block) {
    Py_buffer view;
    if (PyObject_GetBuffer(block, &view, PyBUF_SIMPLE) < 0) return NULL;
    uint32_t crc = crc32c(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef methods[] = {
    {"sound_run", sound_run, METH_VARARGS, "The sound entries at the start of a block, and where the next begins."},
    {"checksum", checksum, METH_O, "CRC-32C, for the test of it."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module) {
    if (!has_crc()) {
        PyErr_SetString(PyExc_ImportError, "this processor has no instruction for CRC-32C that is known here");
        return -1;
    }
    prepare_crc();
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "anabranch.storage._native", "The loop of catch-up reads.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
