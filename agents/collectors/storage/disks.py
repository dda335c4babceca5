"""/proc/diskstats: what the node's disks did. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SECTOR_BYTES = 512
#: Whole disks; partitions, loops and memory say nothing more.
_WHOLE = re.compile(r"nvme\d+n\d+|nvme\d+c\d+n\d+|[shv]d[a-z]{1,3}|xvd[a-z]{1,2}|md\d+|dasd[a-z]+|pmem\d+")
_MAX_DISKS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Sums since the disk was found; the kernel counts milliseconds in 32 bits."""

    name: str
    reads: int
    read_bytes: int
    read_ms: int
    writes: int
    written_bytes: int
    write_ms: int
    pending: int
    busy_ms: int


def parse_diskstats(text: str) -> Iterator[Disk]:
    """Rows of /proc/diskstats that are of the known form; counters as the kernel has them."""
    found = 0
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 14 or not _WHOLE.fullmatch(fields[2]) or found >= _MAX_DISKS:
            continue
        try:
            numbers = [int(field) for field in fields[3:14]]
        except ValueError:
            continue
        found += 1
        yield Disk(
            name=fields[2],
            reads=numbers[0],
            read_bytes=numbers[2] * _SECTOR_BYTES,
            read_ms=numbers[3],
            writes=numbers[4],
            written_bytes=numbers[6] * _SECTOR_BYTES,
            write_ms=numbers[7],
            pending=numbers[8],
            busy_ms=numbers[9],
        )
