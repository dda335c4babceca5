"""/proc/self/mountstats: what the NFS client counted per mount and operation. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

_READ = frozenset({"READ", "READ_PLUS"})
_WRITE = frozenset({"WRITE", "COMMIT"})


@dataclass(slots=True)
class NfsOperations:
    """Sums since the mount of one class of operations. Times are summed over operations.

    queue_ms: waited before being sent. rtt_ms: until the server's reply. execution_ms: both, and what came around them.
    """

    operations: int = 0
    transmissions: int = 0
    timeouts: int = 0
    errors: int = 0
    queue_ms: int = 0
    rtt_ms: int = 0
    execution_ms: int = 0

    @property
    def retransmissions(self) -> int:
        """Requests sent more than once since the mount."""
        return max(0, self.transmissions - self.operations)


@dataclass(slots=True)
class NfsMount:
    """age_s: since it was mounted, which is when its counters began. classes: by "read", "write", "metadata".

    read_bytes, written_bytes: from and to the server. backlog: summed length of the queue for a free slot.
    """

    path: str
    fstype: str
    age_s: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    connects: int = 0
    backlog: int = 0
    bad_xids: int = 0
    classes: dict[str, NfsOperations] = field(default_factory=dict)


def parse_mountstats(text: str) -> list[NfsMount]:
    """NFS mounts of the file, in its order; lines that it does not know, or only half, are passed over."""
    found: list[NfsMount] = []
    mount: NfsMount | None = None
    in_operations = False
    for line in text.splitlines():
        if line.startswith("device "):
            mount, in_operations = _mount(line), False
            if mount is not None:
                found.append(mount)
            continue
        if mount is None:
            continue
        name, colon, rest = line.strip().partition(":")
        if not colon:
            in_operations = in_operations or name.startswith("per-op statistics")
            continue
        numbers = _numbers(rest)
        if in_operations:
            _add_operation(mount, name, numbers)
        elif name == "age" and numbers:
            mount.age_s = numbers[0]
        elif name == "bytes" and len(numbers) >= 6:
            mount.read_bytes, mount.written_bytes = numbers[4], numbers[5]
        elif name == "xprt":
            _add_transport(mount, rest)
    return found


def _mount(line: str) -> NfsMount | None:
    """``device SOURCE mounted on PATH with fstype nfs4 statvers=1.1``; another file system has no statvers."""
    head, found, tail = line.rpartition(" with fstype ")
    _, on, path = head.partition(" mounted on ")
    fstype = tail.split(" ")[0]
    if not (found and on) or not fstype.startswith("nfs"):
        return None
    return NfsMount(path=path.replace("\\040", " "), fstype=fstype)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()[:64] if word.isascii() and word.isdecimal() and len(word) <= 20]


def _add_operation(mount: NfsMount, name: str, numbers: list[int]) -> None:
    if len(numbers) < 8:
        return
    kind = "read" if name in _READ else "write" if name in _WRITE else "metadata"
    sums = mount.classes.setdefault(kind, NfsOperations())
    sums.operations += numbers[0]
    sums.transmissions += numbers[1]
    sums.timeouts += numbers[2]
    sums.queue_ms += numbers[5]
    sums.rtt_ms += numbers[6]
    sums.execution_ms += numbers[7]
    if len(numbers) > 8:  # since Linux 5.3
        sums.errors += numbers[8]


def _add_transport(mount: NfsMount, rest: str) -> None:
    """One line per connection (nconnect): udp has no connection, and so three fields less."""
    kind, _, fields = rest.strip().partition(" ")
    numbers = _numbers(fields)
    if kind == "udp" and len(numbers) >= 7:
        mount.bad_xids += numbers[4]
        mount.backlog += numbers[6]
    elif kind != "udp" and len(numbers) >= 10:
        mount.connects += numbers[2]
        mount.bad_xids += numbers[7]
        mount.backlog += numbers[9]
