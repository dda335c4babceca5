"""One rank's dump as facts: its entries, its process groups, how far it got in each. Pure, and trusts nothing in it.

Reads what torch 2.2 to 2.15 write, as pickle or JSON: JSON has numbers as text and 0 for a time that is not known,
older releases have ``seq_id`` for both kinds of sequence numbers, and gloo leaves every state at "scheduled" and only
tells by ``retired`` that an operation ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

#: Of one entry: innermost frames, tensors, dimensions.
MAX_FRAMES = 32
MAX_TENSORS = 4096
MAX_DIMENSIONS = 16
MAX_GROUPS = 65_536
#: More ranks than any job has; a number in a file's name that is larger is a date or an id.
MAX_RANK = 1 << 20
MAX_NAME = 256
#: A member list of this many bytes has about 130,000 ranks.
MAX_RANKS_TEXT = 1 << 20
#: Entries of a closed operation keep their stack only if they are among the newest.
STACKS_KEPT = 8
#: Counters are 64 bits; what is larger was not written by torch.
MAX_COUNT = 1 << 63

_NUMBER = re.compile(r"\d{1,8}")
_PEERS = re.compile(r"(\d{1,8}|\?)\s*(->|<-)\s*(\d{1,8}|\?)")
_FAR_STATES = frozenset({"started", "completed"})

Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class DumpFrame:
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpEntry:
    """One operation as a rank recorded it.

    sequence: of collectives, in its group. p2p_sequence: of sends and receives, in its group.
    source, target: positions in the group of a send or receive; None where there is none or nobody knows.
    is_open: not seen to end. Times in ns of the node's wall clock, 0 where not known.
    """

    record_id: int
    group: str
    description: str
    pg_id: int
    backend: str
    op: str
    sequence: int
    p2p_sequence: int
    is_p2p: bool
    source: int | None
    target: int | None
    input_sizes: Sizes
    output_sizes: Sizes
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    state: str
    is_open: bool
    created_ns: int
    started_ns: int
    frames: tuple[DumpFrame, ...]

    @property
    def is_started(self) -> bool:
        """Whether the device has begun the operation, by its time or by its state."""
        return self.started_ns > 0 or self.state in _FAR_STATES


@dataclass(frozen=True, slots=True)
class GroupConfig:
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupCounters:
    """Last operation of a group by the rank's own counters: a collective's number or a send's, whichever came last."""

    enqueued: int
    started: int
    completed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDump:
    """groups: by name. status: by pg_id. entries: in the order of record_id. unread: entries that made no sense.

    is_wrapped: older entries than the first are gone.
    """

    rank: int
    source: str
    version: str
    groups: Mapping[str, GroupConfig]
    status: Mapping[int, GroupCounters]
    entries: tuple[DumpEntry, ...]
    unread: int
    is_wrapped: bool


def is_dump(value: object) -> bool:
    """Whether a decoded value looks like what a rank dumps."""
    if isinstance(value, Mapping):
        return isinstance(value.get("entries"), (list, tuple)) or ("pg_config" in value and "version" in value)
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping) and "profiling_name" in value[0]


def decode_dump(raw: object, rank: int, source: str, *, keep: int) -> RankDump:
    """A rank's dump from a decoded value, with its newest ``keep`` entries.

    Never raises: what makes no sense is counted.

    source: where it came from, in words.
    """
    fields: Mapping[object, object] = raw if isinstance(raw, Mapping) else {"entries": raw}
    listed = fields.get("entries")
    rows = [row for row in listed if isinstance(row, Mapping)] if isinstance(listed, (list, tuple)) else []
    unread = (len(listed) if isinstance(listed, (list, tuple)) else 0) - len(rows)
    reporting = {_backend_and_op(row)[0] for row in rows if _text(row.get("state")) in _FAR_STATES}
    rows.sort(key=lambda row: _count(row.get("record_id")))
    shared: dict[object, Sizes] = {}
    entries: list[DumpEntry] = []
    for position, row in enumerate(rows):
        entry = _entry(row, reporting, shared, is_recent=position >= len(rows) - STACKS_KEPT)
        if entry is None:
            unread += 1
        else:
            entries.append(entry)
    is_wrapped = bool(entries) and entries[0].record_id > 0
    if len(entries) > keep:
        is_wrapped = True
        opened = [entry for entry in entries[:-keep] if entry.is_open][: keep // 2]
        entries = opened + entries[-(keep - len(opened)) :]
    return RankDump(
        rank=rank,
        source=source,
        version=_text(fields.get("version")),
        groups=_groups(fields.get("pg_config")),
        status=_status(fields.get("pg_status")),
        entries=tuple(entries),
        unread=unread,
        is_wrapped=is_wrapped,
    )


def _entry(
    row: Mapping[object, object], reporting: set[str], shared: dict[object, Sizes], *, is_recent: bool
) -> DumpEntry | None:
    backend, name = _backend_and_op(row)
    op, _, rest = name.partition(" ")
    if not op:
        return None
    group, description = _group_of(row)
    both = row.get("seq_id")
    state = _text(row.get("state"))
    is_p2p = bool(row.get("is_p2p")) or op in ("send", "recv")
    is_retired = row.get("retired") is True
    # A backend that tells states says so when an operation ends; one that was retired before was given up.
    is_open = state != "completed" and not (is_retired and (backend not in reporting or state == "scheduled"))
    source, target = _peers(op, rest)
    return DumpEntry(
        record_id=_count(row.get("record_id")),
        group=group,
        description=description,
        pg_id=_count(row.get("pg_id"), missing=-1),
        backend=backend,
        op=op,
        sequence=_count(row.get("collective_seq_id", both)),
        p2p_sequence=_count(row.get("p2p_seq_id", both if is_p2p else 0)),
        is_p2p=is_p2p,
        source=source,
        target=target,
        input_sizes=_sizes(row.get("input_sizes"), shared),
        output_sizes=_sizes(row.get("output_sizes"), shared),
        input_dtypes=_dtypes(row.get("input_dtypes")),
        output_dtypes=_dtypes(row.get("output_dtypes")),
        state=state,
        is_open=is_open,
        created_ns=_count(row.get("time_created_ns")),
        started_ns=_count(row.get("time_discovered_started_ns")),
        frames=_frames(row.get("frames")) if is_open or is_recent else (),
    )


def _backend_and_op(row: Mapping[object, object]) -> tuple[str, str]:
    """("nccl", "send 0->1") of "nccl:send 0->1"; the backend's name may have colons, an operation's has none."""
    backend, _, op = _text(row.get("profiling_name")).rpartition(":")
    return backend, op


def _group_of(row: Mapping[object, object]) -> tuple[str, str]:
    named = row.get("process_group")
    if isinstance(named, (list, tuple)) and named:
        return _text(named[0]), _text(named[1]) if len(named) > 1 else ""
    return str(_count(row.get("pg_id"))), ""


def _peers(op: str, text: str) -> tuple[int | None, int | None]:
    found = _PEERS.search(text) if op in ("send", "recv") else None
    if found is None:
        return None, None
    left, right = (None if side == "?" else int(side) for side in (found[1], found[3]))
    return (left, right) if found[2] == "->" else (right, left)


def _sizes(value: object, shared: dict[object, Sizes]) -> Sizes:
    """[[2, 3], []] as tuples; ranks repeat a few shapes thousands of times, so equal ones are one object."""
    if not isinstance(value, (list, tuple)):
        return ()
    sizes = tuple(
        tuple(_count(length) for length in islice(shape, MAX_DIMENSIONS)) if isinstance(shape, (list, tuple)) else ()
        for shape in islice(value, MAX_TENSORS)
    )
    return shared.setdefault(sizes, sizes)


def _dtypes(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value[:MAX_NAME],) if value else ()
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(sorted({_text(name) for name in islice(value, MAX_TENSORS)}))


def _frames(value: object) -> tuple[DumpFrame, ...]:
    """Innermost first, as torch writes them."""
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(
        DumpFrame(_text(row.get("filename")), _count(row.get("line")), _text(row.get("name")))
        for row in islice(value, MAX_FRAMES)
        if isinstance(row, Mapping)
    )


def _groups(value: object) -> dict[str, GroupConfig]:
    groups: dict[str, GroupConfig] = {}
    if isinstance(value, Mapping):
        for name, row in islice(value.items(), MAX_GROUPS):
            # gloo enters every group under the same empty name, each over the one before: of no use.
            if isinstance(row, Mapping) and _text(name):
                groups[_text(name)] = GroupConfig(_text(row.get("desc")), ranks_of(row.get("ranks")))
    return groups


def ranks_of(value: object) -> tuple[int, ...]:
    """Global ranks, sorted, of "[0, 1, 2]" or a list; empty for anything else."""
    if isinstance(value, str):
        return _ranks_in_text(value[:MAX_RANKS_TEXT])
    if isinstance(value, (list, tuple)):
        found = {_count(number, missing=-1) for number in islice(value, MAX_RANKS_TEXT)}
        return tuple(sorted(rank for rank in found if 0 <= rank < MAX_RANK))
    return ()


@lru_cache(maxsize=4096)
def _ranks_in_text(text: str) -> tuple[int, ...]:
    """All members of a group write the same list: thousands of ranks of thousands."""
    return tuple(sorted({rank for number in _NUMBER.findall(text) if (rank := int(number)) < MAX_RANK}))


def _status(value: object) -> dict[int, GroupCounters]:
    status: dict[int, GroupCounters] = {}
    if isinstance(value, Mapping):
        for key, row in islice(value.items(), MAX_GROUPS):
            pg_id = _count(key, missing=-1)
            if isinstance(row, Mapping) and pg_id >= 0:
                status[pg_id] = GroupCounters(
                    *(
                        _count(row.get(f"last_{what}_collective"), missing=-1)
                        for what in ("enqueued", "started", "completed")
                    )
                )
    return status


def _text(value: object) -> str:
    if isinstance(value, str):
        return value[:MAX_NAME]
    return str(value)[:MAX_NAME] if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


def _count(value: object, *, missing: int = 0) -> int:
    """A counter or a length; numbers also come as text. Sequences: ``missing`` for what is none."""
    if isinstance(value, bool):
        return missing
    if isinstance(value, int):
        return value if -1 <= value < MAX_COUNT else missing
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.lstrip("-").isdigit():
        return _count(int(value), missing=missing)
    return missing


def user_frame(frames: Sequence[DumpFrame]) -> DumpFrame | None:
    """The innermost frame that is neither torch's nor an installed package's nor the standard library's; None: no such.

    frames: innermost first.
    """
    return next((frame for frame in frames if frame.file and not _FOREIGN.search(frame.file)), None)


_FOREIGN = re.compile(
    r"(^|/)(site-packages|dist-packages)/|/lib(64)?/python3(\.\d+)?t?/|(^|/)torch/(\w+/)*\w+\.(py|cpp|h)$|^<(frozen|string|eval)"
)
