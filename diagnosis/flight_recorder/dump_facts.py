"""What of a rank's dump the judgement of all ranks needs, in a few kilobytes: what goes from a node to the judge. Pure.

Of each process group the calls around the first one that is open, and the newest; the rank's own counters; of the line
of code the innermost of the user's, for the first open call and the last one. Read back it is a ``RankDump`` with fewer
entries, so that the analysis of files (``analysis.analyse``) judges it as well: there is one set of rules. What is read
came from a user's file through his node: it is decoded as a dump is, and trusted as little.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from ...telemetry.ring_layout import format_ranks
from ...telemetry.strided_ranks import lengthen, shorten
from ...telemetry.told_ranks import read_ranks
from .entry_matching import numel
from .rank_dump import (
    MAX_RANK,
    DumpEntry,
    GroupConfig,
    GroupCounters,
    RankDump,
    Sizes,
    decode_dump,
    user_frame,
)

#: Of one rank: what goes over the bus, and how long the text of a group's members may become.
MAX_FACTS_BYTES = 24 << 10
_MAX_MEMBERS_CHARS = 1 << 18
#: Calls of a group beside the first open one, and how many of the newest; smaller where it would be too much.
_WINDOWS = (16, 8, 4, 2, 1)
#: Of jobs with more ranks fewer calls are told: all of them come at once to one judge.
_MANY_RANKS, _WINDOW_OF_MANY = 1_024, 4
_MAX_GROUPS = 256
#: A call with more tensors is told by the number of their elements: that is what must agree.
_MAX_TENSORS = 16
#: Calls kept when facts are read.
_KEEP = 16_384
_VERSION = 1


class BadFacts(ValueError):
    """No facts of a dump; the text is one line that says why."""


def write_facts(dump: RankDump) -> str:
    """A dump's facts as JSON of ``MAX_FACTS_BYTES`` at most, for ``read_facts``; "" where even the least is more."""
    largest = max((len(one.ranks) for one in dump.groups.values()), default=0)
    for window in _WINDOWS if largest <= _MANY_RANKS else _WINDOWS[_WINDOWS.index(_WINDOW_OF_MANY) :]:
        text = json.dumps(_facts(dump, window), separators=(",", ":"))
        if len(text) <= MAX_FACTS_BYTES:
            return text
    return ""


def _facts(dump: RankDump, window: int) -> dict[str, object]:
    kept = kept_entries(dump.entries, window)
    first_open = next((entry for entry in kept if entry.is_open), None)
    shown = {entry.record_id for entry in (first_open, kept[-1] if kept else None) if entry is not None}
    groups = dict(islice(((name, one) for name, one in dump.groups.items() if dump.rank in one.ranks), _MAX_GROUPS))
    calls: dict[str, int] = {}
    rows = [_row(entry, calls, is_shown=entry.record_id in shown) for entry in kept]
    counters = {str(pg_id): [one.enqueued, one.started, one.completed] for pg_id, one in dump.status.items()}
    return {
        "v": _VERSION,
        "version": dump.version,
        "is_cut": dump.is_wrapped or len(kept) < len(dump.entries),
        "groups": {name: [one.description, shorten(format_ranks(list(one.ranks)))] for name, one in groups.items()},
        "counters": dict(islice(counters.items(), _MAX_GROUPS)),
        "calls": [json.loads(call) for call in calls],
        "entries": rows,
    }


def kept_entries(entries: Sequence[DumpEntry], window: int) -> list[DumpEntry]:
    """Of each group and sort of call: ``window`` before the first open one and from there on, and the newest, in their
    order."""
    places: dict[tuple[str, bool], list[int]] = {}
    for place, entry in enumerate(entries):
        places.setdefault((entry.group, entry.is_p2p), []).append(place)
    kept: set[int] = set()
    for of_group in places.values():
        first = next((index for index, place in enumerate(of_group) if entries[place].is_open), len(of_group))
        kept.update(of_group[max(0, first - window) : first + window])
        kept.update(of_group[-window:])
    return [entries[place] for place in sorted(kept)]


def _row(entry: DumpEntry, calls: dict[str, int], *, is_shown: bool) -> list[object]:
    """[call, record, sequence, p2p sequence, state, is open, created, started, frame]; equal calls are told once."""
    call = json.dumps(
        [
            entry.group,
            entry.description,
            entry.pg_id,
            f"{entry.backend}:{_named(entry)}",
            entry.is_p2p,
            _brief(entry.input_sizes),
            _brief(entry.output_sizes),
            entry.input_dtypes[:_MAX_TENSORS],
            entry.output_dtypes[:_MAX_TENSORS],
        ]
    )
    place = calls.setdefault(call, len(calls))
    row: list[object] = [place, entry.record_id, entry.sequence, entry.p2p_sequence, entry.state, entry.is_open]
    row += [entry.created_ns, entry.started_ns]
    frame = user_frame(entry.frames) if is_shown else None
    if frame is not None:
        row.append([frame.file, frame.line, frame.function])
    return row


def _named(entry: DumpEntry) -> str:
    """As torch names it: of a send or receive with both ends."""
    if entry.source is None and entry.target is None:
        return entry.op
    source, target = ("?" if end is None else end for end in (entry.source, entry.target))
    return f"{entry.op} {source}->{target}"


def _brief(sizes: Sizes) -> Sizes:
    return sizes if len(sizes) <= _MAX_TENSORS else ((numel(sizes),),)


def read_facts(text: str, rank: int, source: str) -> RankDump:
    """The dump that ``write_facts`` wrote of, with the entries that it kept. source: in words, where it came from.

    Raises BadFacts. What makes no sense in an entry is counted (``unread``), as in a dump.
    """
    if len(text) > MAX_FACTS_BYTES:
        raise BadFacts(f"has {len(text)} characters, more than {MAX_FACTS_BYTES}")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise BadFacts(f"is no JSON: {str(wrong)[:80]}") from None
    if not isinstance(told, Mapping) or told.get("v") != _VERSION:
        raise BadFacts(f"is not of version {_VERSION}")
    calls, entries = told.get("calls"), told.get("entries")
    if not isinstance(calls, list) or not isinstance(entries, list):
        raise BadFacts("has no list of calls and entries")
    rows = [_entry(row, calls) for row in entries]
    read = decode_dump({"version": told.get("version"), "entries": rows}, rank, source, keep=_KEEP)
    return replace(
        read,
        groups=_groups(told.get("groups")),
        status=_counters(told.get("counters")),
        is_wrapped=read.is_wrapped or told.get("is_cut") is not False,
    )


def _entry(row: object, calls: Sequence[object]) -> dict[str, object] | None:
    """One entry as torch would have dumped it; None, which ``decode_dump`` counts, for what is none."""
    if not isinstance(row, list) or len(row) not in (8, 9):
        return None
    place, record, sequence, p2p_sequence, state, is_open, created_ns, started_ns = row[:8]
    call = calls[place] if isinstance(place, int) and 0 <= place < len(calls) else None
    if not isinstance(call, list) or len(call) != 9:
        return None
    group, description, pg_id, name, is_p2p, input_sizes, output_sizes, input_dtypes, output_dtypes = call
    frame = row[8] if len(row) == 9 else None
    is_known = isinstance(frame, list) and len(frame) == 3
    return {
        "process_group": (group, description),
        "pg_id": pg_id,
        "profiling_name": name,
        "is_p2p": is_p2p,
        "input_sizes": input_sizes,
        "output_sizes": output_sizes,
        "input_dtypes": input_dtypes,
        "output_dtypes": output_dtypes,
        "record_id": record,
        "collective_seq_id": sequence,
        "p2p_seq_id": p2p_sequence,
        # Whether it is open was told by all entries of its backend; here it stands by itself.
        "state": state if is_open or state == "completed" else "scheduled",
        "retired": not is_open,
        "time_created_ns": created_ns,
        "time_discovered_started_ns": started_ns,
        "frames": [{"filename": frame[0], "line": frame[1], "name": frame[2]}] if is_known and frame else [],
    }


def _groups(told: object) -> dict[str, GroupConfig]:
    groups: dict[str, GroupConfig] = {}
    for name, row in islice(told.items(), _MAX_GROUPS) if isinstance(told, Mapping) else ():
        if isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], str):
            groups[name] = GroupConfig(row[0], _members(row[1]))
    return groups


def _members(runs: str) -> tuple[int, ...]:
    try:
        return tuple(read_ranks(lengthen(runs, MAX_RANK, _MAX_MEMBERS_CHARS)))
    except ValueError:
        return ()


def _counters(told: object) -> dict[int, GroupCounters]:
    counters: dict[int, GroupCounters] = {}
    for pg_id, row in islice(told.items(), _MAX_GROUPS) if isinstance(told, Mapping) else ():
        is_row = isinstance(row, list) and len(row) == 3 and all(type(one) is int and one >= -1 for one in row)
        if is_row and pg_id.isascii() and pg_id.isdigit() and len(pg_id) < 10:
            counters[int(pg_id)] = GroupCounters(*row)
    return counters
