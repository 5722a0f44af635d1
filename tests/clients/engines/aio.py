# SPDX-License-Identifier: Apache-2.0
"""Linux AIO as NIXL's POSIX plugin uses it (io_setup, io_submit, io_getevents); Python has no module for it."""

import ctypes
import errno
import functools
import os
import platform
import struct

from engine_client import address_of

# io_setup, io_submit, io_getevents
SYSTEM_CALLS = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}
PREAD, PWRITE = 0, 1
DEPTH = 64

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def system_call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class Aio:
    """For one thread. Lives as long as its process."""

    def __init__(self):
        setup, self.submit, self.getevents = SYSTEM_CALLS[platform.machine()]
        self.context = ctypes.c_ulong(0)
        system_call(setup, ctypes.c_uint(DEPTH), ctypes.byref(self.context))

    def transfer(self, operation, fd, buffer, page_bytes):
        """Moves all of the buffer from or to the beginning of the file, a request for each page_bytes. Returns the
        bytes moved; a request that moves less than it was asked to is an error, as in NIXL since 2026-09."""
        moved = 0
        address = address_of(buffer)
        requests = [(start, min(page_bytes, len(buffer) - start)) for start in range(0, len(buffer), page_bytes)]
        for first in range(0, len(requests), DEPTH):
            moved += self.batch(operation, fd, address, requests[first : first + DEPTH])
        return moved

    def results(self, operation, fd, address, requests):
        """Submits the requests (offset in file and buffer, length), at most DEPTH, together. Returns what each
        completed with: the bytes moved, or -errno."""
        # struct iocb: data, key, rw_flags, opcode, reqprio, fildes, buf, nbytes, offset, reserved2, flags, resfd
        blocks = [
            ctypes.create_string_buffer(
                struct.pack("<QIiHhIQQqQII", i, 0, 0, operation, 0, fd, address + start, n, start, 0, 0, 0), 64
            )
            for i, (start, n) in enumerate(requests)
        ]
        pointers = (ctypes.c_void_p * len(blocks))(*(ctypes.addressof(block) for block in blocks))
        submitted = 0
        while submitted < len(blocks):
            rest = ctypes.byref(pointers, submitted * ctypes.sizeof(ctypes.c_void_p))
            submitted += system_call(self.submit, self.context, ctypes.c_long(len(blocks) - submitted), rest)
        # struct io_event: data, obj, res, res2
        events = ctypes.create_string_buffer(32 * len(blocks))
        n_events = 0
        while n_events < len(blocks):
            rest = ctypes.byref(events, 32 * n_events)
            left = ctypes.c_long(len(blocks) - n_events)
            n_events += system_call(self.getevents, self.context, left, left, rest, None)
        completed = {i: result for i, _, result, _ in struct.iter_unpack("<QQqq", events.raw)}
        return [completed[i] for i in range(len(requests))]

    def batch(self, operation, fd, address, requests):
        results = self.results(operation, fd, address, requests)
        for (_, n), result in zip(requests, results):
            if result < 0:
                raise OSError(-result, os.strerror(-result))
            if result != n:
                raise OSError(errno.EIO, f"request of {n} bytes moved {result}")
        return sum(results)


@functools.cache
def process_aio():
    return Aio()
