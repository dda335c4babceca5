"""A file system in user space that can be made to stall: SIGSTOP its server, and the mount no longer answers.

Speaks the kernel's FUSE protocol itself (an empty root in which files can be made and removed). Run as a program:
``stalling_fuse.py PATH SOURCE`` mounts, prints "ready" and serves until its end. SIGCONT makes the mount answer again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys

HEADER = struct.Struct("=IIQQIIII")
ANSWER = struct.Struct("=IiQ")
ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
LOOKUP, FORGET, GETATTR, UNLINK, WRITE, STATFS, RELEASE, FSYNC = 1, 2, 3, 10, 16, 17, 18, 20
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, CREATE, INTERRUPT, DESTROY, BATCH_FORGET = 25, 26, 27, 28, 29, 35, 36, 38, 42
SILENT = (FORGET, INTERRUPT, BATCH_FORGET)
EMPTY = (UNLINK, RELEASE, FSYNC, FLUSH, READDIR, RELEASEDIR, DESTROY)
FILE = 2


def attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o600
    return ATTRIBUTES.pack(node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(operation: int, node: int, body: bytes, files: set[bytes]) -> tuple[int, bytes]:
    """(negative errno, what follows the header)."""
    if operation == INIT:
        return 0, struct.pack("=IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 9, 65536, 1, 16, 0, 0)
    if operation == GETATTR:
        return 0, struct.pack("=QII", 0, 0, 0) + attributes(node)
    if operation == STATFS:
        return 0, struct.pack("=QQQQQIIII24x", 1000, 600, 500, 100, 90, 4096, 255, 4096, 0)
    if operation == OPENDIR:
        return 0, struct.pack("=QII", 1, 0, 0)
    if operation == LOOKUP and body.rstrip(b"\0") not in files:
        return -errno.ENOENT, b""
    if operation in (LOOKUP, CREATE):
        if operation == CREATE:
            files.add(body[16:].rstrip(b"\0"))
        entry = struct.pack("=QQQQII", FILE, 0, 0, 0, 0, 0) + attributes(FILE)
        return 0, entry + (struct.pack("=QII", 2, 0, 0) if operation == CREATE else b"")
    if operation == WRITE:
        return 0, struct.pack("=II", struct.unpack_from("=QQI", body)[2], 0)
    if operation == UNLINK:
        files.discard(body.rstrip(b"\0"))
    return (0, b"") if operation in EMPTY else (-errno.ENOSYS, b"")


def mount(path: str, source: str) -> int:
    """The descriptor on which the kernel asks. Raises OSError where this is not allowed."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), path.encode(), b"fuse.played", 6, options):
        raise OSError(ctypes.get_errno(), "mount")
    return fd


def unmount(path: str) -> None:
    ctypes.CDLL(None).umount2(path.encode(), 2)  # MNT_DETACH


def serve(fd: int) -> None:
    files: set[bytes] = set()
    while True:
        try:
            asked = os.read(fd, 1 << 20)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            continue
        _, operation, unique, node, *_ = HEADER.unpack_from(asked)
        if operation in SILENT:
            continue
        failed, body = answer(operation, node, asked[HEADER.size :], files)
        os.write(fd, ANSWER.pack(ANSWER.size + len(body), failed, unique) + body)


if __name__ == "__main__":
    channel = mount(sys.argv[1], sys.argv[2])
    print("ready", flush=True)
    serve(channel)
