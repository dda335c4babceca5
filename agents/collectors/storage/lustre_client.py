"""What a node's Lustre client counted: operations and bytes per file system, and whether its targets answer.

Where the files are moved between releases: /proc/fs/lustre before 2.12, debugfs and /sys/fs/lustre since.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..base.kernel_files import list_names, read_text

_MAX_FILE_BYTES = 256 << 10
#: Targets of all file systems together; the largest sites have some thousands.
_MAX_TARGETS = 4096
#: "open   12 samples [usecs] 3 880 1932": count, unit, least, most, sum.
_STATISTIC = re.compile(
    r"(?P<name>\w{1,40})\s+(?P<count>\d{1,20}) samples \[(?P<unit>\w{1,10})\]"
    r"(?:\s+\d{1,20}\s+\d{1,20}\s+(?P<sum>\d{1,24}))?"
)
_STATE = re.compile(r"^\s*state:\s*(\w{1,20})", re.MULTILINE)
_TIMEOUTS = re.compile(r"^\s*timeouts:\s*(\d{1,18})", re.MULTILINE)
_CONNECTION = re.compile(r"^\s*current_connection:\s*(\S{1,100})", re.MULTILINE)
#: Answers, or has been left alone because nobody asked it anything.
_WELL = frozenset({"FULL", "IDLE"})


@dataclass(slots=True)
class LustreClient:
    """One mounted file system. operations: by name. times_us: summed, of those that the kernel times."""

    filesystem: str
    read_bytes: int = 0
    written_bytes: int = 0
    operations: dict[str, int] = field(default_factory=dict)
    times_us: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LustreTarget:
    """A server's target as this client sees it. ``timeouts``: requests that were not answered in time, ever."""

    name: str
    kind: str
    state: str
    timeouts: int
    server: str

    @property
    def is_well(self) -> bool:
        """Whether the client's connection to the target is in a state in which it serves."""
        return self.state in _WELL


def parse_statistics(filesystem: str, text: str) -> LustreClient:
    """A client's counters from the stats file of a mounted file system; lines that are not known count nothing."""
    client = LustreClient(filesystem)
    for match in map(_STATISTIC.match, text.splitlines()):
        if match is None:
            continue
        name, count, total = match["name"], int(match["count"]), int(match["sum"] or 0)
        if match["unit"] == "bytes":
            if name == "read_bytes":
                client.read_bytes = total
            elif name == "write_bytes":
                client.written_bytes = total
            name = name.removesuffix("_bytes")
        elif match["unit"] in ("usec", "usecs"):
            client.times_us[name] = total
        client.operations[name] = count
    return client


def parse_import(name: str, kind: str, text: str) -> LustreTarget | None:
    """The import file of one target (kind mdc, osc or mgc); None where it names no state."""
    state = _STATE.search(text)
    if state is None:
        return None
    timeouts, connection = _TIMEOUTS.search(text), _CONNECTION.search(text)
    return LustreTarget(
        # Behind the target's name stands the address of the mount in memory, another one each time.
        name=name.rpartition("-" + kind)[0] or name,
        kind=kind,
        state=state[1],
        timeouts=int(timeouts[1]) if timeouts else 0,
        server=connection[1] if connection else "",
    )


def _entries(proc: Path, sys: Path, kind: str, file: str) -> Iterator[tuple[str, str]]:
    """(name of the client's instance, text of ``file``), from the first tree that has it."""
    seen: set[str] = set()
    for root in (proc / "fs/lustre", sys / "kernel/debug/lustre", sys / "fs/lustre"):
        for name in list_names(root / kind)[:_MAX_TARGETS]:
            text = None if name in seen else read_text(root / kind / name / file, _MAX_FILE_BYTES)
            if text is not None:
                seen.add(name)
                yield name, text


def lustre_clients(proc: Path, sys: Path) -> Iterator[LustreClient]:
    """One per mounted Lustre file system, from /proc or debugfs under /sys."""
    for name, text in _entries(proc, sys, "llite", "stats"):
        yield parse_statistics(name.rpartition("-")[0] or name, text)


def lustre_targets(proc: Path, sys: Path) -> Iterator[LustreTarget]:
    """Metadata, object and management targets of all mounts, those whose import file can be read."""
    for kind in ("mdc", "osc", "mgc"):
        for name, text in _entries(proc, sys, kind, "import"):
            target = parse_import(name, kind, text)
            if target is not None:
                yield target
