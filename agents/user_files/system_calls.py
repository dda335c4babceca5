"""System calls that Python has no function for: openat2, statx and fstatfs. Imports little: helpers start with it."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from struct import Struct

_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH, _RESOLVE_IN_ROOT = 0x02, 0x04, 0x08, 0x10
#: How a name is resolved: below a folder that we hold, no link on its way; or as a process sees it, from its root.
BELOW, IN_ROOT = "below", "in root"
_RESOLVE = {
    BELOW: _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS,
    IN_ROOT: _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS,
}
_OPEN_HOW = Struct("=QQQ")
#: struct statx: links, uid, mode, inode, size, blocks, mtime, device.
_STATX = Struct("=16xII4xH2xQQQ56xqI4x8xII112x")
#: AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT, AT_STATX_DONT_SYNC.
_STATX_FLAGS, _STATX_BASIC = 0x1000 | 0x100 | 0x800 | 0x4000, 0x7FF
_StatxBuffer = ctypes.c_char * _STATX.size
_libc = ctypes.CDLL(None, use_errno=True)
#: f_type is the first word of struct statfs; 256 bytes are more than any release's.
_STATFS_BYTES = 256
_PROC = 0x9FA0


def open_at(folder: int, path: str, flags: int, how: str) -> int:
    """A descriptor of ``path``, resolved as ``how`` (``BELOW``, ``IN_ROOT``) says, never through /proc's magic links.

    Raises OSError.
    """
    request = ctypes.create_string_buffer(_OPEN_HOW.pack(flags | os.O_CLOEXEC, 0, _RESOLVE[how]), _OPEN_HOW.size)
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    for _ in range(8):
        fd = int(_libc.syscall(_OPENAT2, folder, name, request, ctypes.c_size_t(_OPEN_HOW.size)))
        if fd >= 0:
            return fd
        if ctypes.get_errno() == errno.ENOSYS:
            return open_by_steps(folder, path, flags, how)
        if ctypes.get_errno() != errno.EAGAIN:  # somebody renames beside us
            break
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def open_by_steps(folder: int, path: str, flags: int, how: str) -> int:
    """The same where the kernel has no openat2 (before 5.6): step by step, each link read and none followed.

    Raises OSError.
    """
    places = [os.dup(folder)]
    left = path.split("/")[::-1]
    links = 0
    try:
        while left:
            part = left.pop()
            is_last = not any(left)
            if part == "..":
                if how == BELOW:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
                if len(places) > 1:
                    os.close(places.pop())
            elif part not in ("", "."):
                place = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=places[-1])
                if not stat.S_ISLNK(os.fstat(place).st_mode):
                    places.append(place)
                    if is_last:
                        return os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=places[-2])
                    continue
                links += 1
                if is_last and flags & os.O_NOFOLLOW and flags & os.O_PATH:
                    return place
                try:
                    if (
                        how == BELOW
                        or links > 40
                        or (flags & os.O_NOFOLLOW and is_last)
                        or file_system_of(place) == _PROC
                    ):
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    target = os.readlink("", dir_fd=place)
                finally:
                    os.close(place)
                left += target.split("/")[::-1]
                while target.startswith("/") and len(places) > 1:
                    os.close(places.pop())
        return os.open(".", flags | os.O_CLOEXEC, dir_fd=places[-1])
    finally:
        for place in places:
            os.close(place)


def file_system_of(fd: int) -> int:
    """The magic number of the file system that a descriptor's file lies on. Raises OSError."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(fd, found) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(ctypes.c_long.from_buffer(found).value) & 0xFFFFFFFF


class FileState:
    """What the kernel knows of a file without asking whoever serves its file system. (Plain: ``typing`` costs 3 MB.)"""

    __slots__ = ("changed_ns", "device_inode", "links", "mode", "size", "uid", "used_bytes")

    def __init__(
        self, mode: int, uid: int, size: int, changed_ns: int, device_inode: tuple[int, int], links: int, used: int
    ) -> None:
        self.mode, self.uid, self.size, self.changed_ns = mode, uid, size, changed_ns
        self.device_inode, self.links, self.used_bytes = device_inode, links, used


def state_of(folder: int, name: str = "") -> FileState:
    """Of what is called ``name`` in a folder (a link is not followed), or of the descriptor itself. Raises OSError.

    Never waits: a file system in user space (FUSE) is not asked, its last answer counts.
    """
    buffer = _StatxBuffer()
    if _libc.statx(folder, os.fsencode(name), _STATX_FLAGS, _STATX_BASIC, buffer) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name or None)
    links, uid, mode, inode, size, blocks, seconds, ns, major, minor = _STATX.unpack(buffer)
    return FileState(
        mode, uid, size, seconds * 1_000_000_000 + ns, (os.makedev(major, minor), inode), links, blocks * 512
    )
