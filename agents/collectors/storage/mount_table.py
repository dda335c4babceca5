"""What is mounted, from /proc/PID/mountinfo: file systems of servers and of disks, each once. Pure.

Bind mounts show one file system many times (a container has dozens); the shortest path speaks for it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ....telemetry.file_systems import OF_DISKS, OF_SERVERS

#: FUSE file systems that show the kernel's or the desktop's own things.
_NOT_STORAGE = frozenset({"fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse", "fuse.snapfuse", "fuse.squashfuse"})
#: ext4 and others say this where the superblock's own flag does not.
_STOPPED = frozenset({"ro", "shutdown", "emergency_ro"})
_OCTAL = re.compile(r"\\([0-7]{3})")
MAX_MOUNTS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """device: "0:51", the kernel's number of the file system. server: "" for a disk."""

    path: str
    device: str
    fstype: str
    source: str
    server: str
    read_only: bool
    is_network: bool


def parse_mounts(text: str) -> list[Mount]:
    """File systems of servers and disks in a mountinfo file, each once by its shortest path, ordered by path.

    Lines that are no such mounts are passed over; at most ``MAX_MOUNTS``.
    """
    found: dict[str, Mount] = {}
    for line in text.splitlines():
        mount = parse_mount(line)
        if mount is None:
            continue
        known = found.get(mount.device)
        if known is None or (len(mount.path), mount.path) < (len(known.path), known.path):
            found[mount.device] = mount
    return sorted(found.values(), key=lambda mount: mount.path)[:MAX_MOUNTS]


def parse_mount(line: str) -> Mount | None:
    """The mount in one line of mountinfo.

    None for what is no storage: proc, cgroups, tmpfs, overlays beside the root.
    """
    fields = line.split(" ")
    try:
        dash = fields.index("-", 6)
        device, path, options = fields[2], _decode(fields[4]), fields[5]
        fstype, source, super_options = fields[dash + 1], _decode(fields[dash + 2]), fields[dash + 3]
    except (ValueError, IndexError):
        return None
    if fstype.startswith("fuse") and _mounted_by(super_options) not in (0, os.geteuid()):
        return None  # a user's daemon would answer root's questions, when and with what he likes
    is_network = is_of_a_server(fstype)
    if not (is_network or fstype in OF_DISKS or (fstype == "overlay" and path == "/")):
        return None
    return Mount(
        path=path,
        device=device,
        fstype=fstype,
        source=source,
        server=server_of(source) if is_network else "",
        read_only=not _STOPPED.isdisjoint(options.split(",")) or not _STOPPED.isdisjoint(super_options.split(",")),
        is_network=is_network,
    )


def is_of_a_server(fstype: str) -> bool:
    """Whether a file system of this type is a client of a server, or of a process that may hang as one does."""
    return fstype in OF_SERVERS or (fstype.startswith("fuse.") and fstype not in _NOT_STORAGE)


def mount_points(text: str) -> frozenset[str]:
    """Paths at which anything is mounted, in a mountinfo file."""
    return frozenset(_decode(words[4]) for line in text.splitlines() if len(words := line.split(" ")) > 4)


def _mounted_by(super_options: str) -> int:
    """The user of a FUSE mount; 0: the kernel does not say, so it is root's."""
    words = (option.removeprefix("user_id=") for option in super_options.split(",") if option.startswith("user_id="))
    return int(next((word for word in words if word.isdecimal()), "0"))


def server_of(source: str) -> str:
    """The server in a mount's source, "" where none is named.

    "nas1" of "nas1:/data", "10.0.0.1@o2ib" of Lustre's list.
    """
    if source.startswith("//"):
        return source[2:].partition("/")[0]
    if source.startswith("["):  # an IPv6 address
        return source[1:].partition("]")[0]
    before, found, _ = source.partition(":/")
    return before.split(":")[0].split(",")[0] if found else ""


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """The mount on which an absolute path lies by its name; None where none has it.

    Symbolic links are not followed: that could block.
    """
    best = None
    for mount in mounts:
        base = mount.path.rstrip("/")
        if (path == mount.path or path.startswith(base + "/")) and (best is None or len(mount.path) > len(best.path)):
            best = mount
    return best


def _decode(text: str) -> str:
    """Spaces, tabs, newlines and backslashes stand as octal numbers."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8) & 0xFF), text)


def automount_roots(text: str) -> tuple[str, ...]:
    """Paths in a mountinfo file, each with a slash behind it, under which autofs mounts come and go."""
    fields = (line.split(" ") for line in text.splitlines())
    return tuple(_decode(words[4]) + "/" for words in fields if "autofs" in words[6:] and len(words) > 4)
