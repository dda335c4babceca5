"""A job's state as rows of table "job", and back. No pickle.

``revision`` number of the last change, ``facts`` slow-changing JSON, ``clock`` what changes with every batch (flush
times in the order of ``offsets`` in ``facts``), ``progress`` newest progress rows, ``steps`` the window of closed
steps, ``open/N`` rows of open steps as they came, one per batch, ``gathered`` blocks that are not taken yet, ``ledger``
what the seconds were spent on. A change of what these rows hold raises ``state_versions.SCHEMA_VERSION``: a state of
another version is set aside and made anew from the bus.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from ....telemetry.records import Group
from ...operator import Table
from ..columns.packing import pack, unpack
from ..columns.rows import in_dtype
from ..detectors.crash.crash_order import Ending
from ..detectors.hang.call_gaps import CallGaps
from ..detectors.slow.checkpoint_straggler import Saves
from ..detectors.slow.straggler import StepTimes
from .accounting_state import Ledger
from .attempts import Attempts
from .device_window import DeviceWindow
from .job_state import JobState
from .open_rows import Arrived, OpenChunk, OpenRows
from .rank_state import BadInput, CallSite, NodeFacts, OpenFinding, RankFacts

_PLAIN_FACTS = (
    "cluster",
    "run",
    "job",
    "name",
    "attempt",
    "world_size",
    "offsets",
    "steps_before",
    "signalled_ns",
    "finished_ns",
    "exit_code",
    "nodes_expected",
    "judged_by",
    "judge_left",
)
#: Names of the single numbers in ``clock``, in their order there.
_CLOCK_NUMBERS = ("due_ns", "number_due_ns", "counts_due_ns", "joining_looked_ns", "closed_stamp_ns")
_RANK_FACTS = tuple(RankFacts.__slots__)
#: Not there before these were told.
_LATER_FACTS = (
    "placement",
    "placement_due_ns",
    "owner",
    "gpus_held",
    "checkpoints",
    "restored_steps",
    "endings_judged_ns",
    "inferred",
)
_PLAIN_STEPS = ("saved_steps", "slow_step_ns", "closed_step", "pace_checked_step", "sighted")


# --- writing ----------------------------------------------------------------------------------------------------------
def save_job(job: JobState, table: Table) -> None:
    """Writes the rows that changed since the last call; those that hold the whole job when they are needed.

    Of a job of 16,384 ranks ``progress`` is 6 MB, and 2,000 messages a second change it.
    """
    if job.facts_changed:
        table.put_later("facts", lambda: pack(_facts_values(job)))
        job.settle_facts()
    if job.progress_changed:
        table.put_later("progress", lambda: pack({}, _progress_arrays(job)))
    if job.steps_changed:
        table.put_later("steps", lambda: pack(_steps_values(job), _steps_arrays(job)))
    if job.ledger.changed:
        table.put_later("ledger", job.ledger.pack)
        job.ledger.changed = False
    if job.open_changed or job.rewrite_open:
        _save_open(job, table)
    if job.gathering.due_ns or job.gathering_saved:
        table.put_later("gathered", job.gathering.pack)
        job.gathering_saved = job.gathering.due_ns > 0
    job.progress_changed = job.steps_changed = job.open_changed = False
    job.revision += 1
    table.put("revision", b"%d" % job.revision)
    table.put_later("clock", lambda: _clock(job))


def _clock(job: JobState) -> bytes:
    numbers = [getattr(job, name) for name in _CLOCK_NUMBERS]
    numbers += [job.flushed_ns.get(node, 0) for node in job.offsets]
    arrays = {"numbers": np.array(numbers), "open_calls": job.open_calls.as_array(), "newest_step": job.newest_step}
    return b"%d\n%s" % (job.revision, pack({}, arrays))


def is_current(job: JobState, table: Table) -> bool:
    """Whether this working copy is what the rows say (it is not after the runner rolled back).

    A state of an earlier release has no such row before its first change.
    """
    return table.get("revision") == b"%d" % job.revision


def _open_tables(job: JobState) -> tuple[tuple[str, OpenRows], ...]:
    return (
        ("rows", job.pending),
        ("steps", job.step_rows),
        ("groups", job.step_groups),
        ("device", job.device_steps),
    )


def _save_open(job: JobState, table: Table) -> None:
    """Adds what came since the last call to the newest row, or to a new one where that is written already; begins anew
    after a step has closed. Most rows are never written: their steps close before the next commit."""
    if job.rewrite_open:
        for name in job.chunks:
            table.delete(name)
        job.chunks, job.open_chunk = [], None
        fresh = {name: rows.take_everything() for name, rows in _open_tables(job)}
        job.rewrite_open = False
    else:
        fresh = {name: rows.take_unsaved() for name, rows in _open_tables(job)}
    if not any(fresh.values()):
        return
    if job.open_chunk is None or job.open_chunk.is_written:
        job.open_chunk = OpenChunk()
        job.chunks.append(f"open/{job.revision:012d}")
    for name, parts in fresh.items():
        job.open_chunk.parts += [(name, part) for part in parts]
    table.put_later(job.chunks[-1], job.open_chunk.write)


def _facts_values(job: JobState) -> dict[str, Any]:
    return {
        **{name: getattr(job, name) for name in (*_PLAIN_FACTS, *_LATER_FACTS)},
        "attempts": job.attempts.as_json(),
        "groups": [asdict(group) for group in job.groups],
        "ranks": {str(rank): {name: getattr(facts, name) for name in _RANK_FACTS} for rank, facts in job.ranks.items()},
        "endings": [asdict(ending) for ending in job.endings],
        "blind_ranks": sorted(job.blind_ranks),
        "nodes": {name: asdict(node) for name, node in job.nodes.items()},
        "findings": [asdict(finding) for finding in job.findings.values()],
    }


def _progress_arrays(job: JobState) -> dict[str, np.ndarray]:
    progress = {"progress": job.progress, "stamps": job.progress_stamps, "rare": job.rare_until_ns}
    gaps = {} if job.steps_seen() else job.call_gaps.as_arrays()
    return {**progress, "group_rows": job.group_rows, "group_stamps": job.group_stamps, **gaps}


def _steps_values(job: JobState) -> dict[str, Any]:
    return {
        **{name: getattr(job, name) for name in _PLAIN_STEPS},
        "last_seqs": list(job.last_seqs.items()),
        "usual_counts": list(job.usual_counts.items()),
        "even_steps": list(job.even_steps.items()),
        "device_gaps": list(job.device_gaps.items()),
        "longest_ns": job.longest_ns.tolist(),
    }


def _steps_arrays(job: JobState) -> dict[str, np.ndarray]:
    times = {name: getattr(job.times, name) for name in StepTimes.__slots__}
    saves = {f"save/{name}": getattr(job.saves, name) for name in Saves.__slots__}
    return {
        **times,
        **saves,
        "drift": job.drift,
        **job.window.arrays(),
        "recent": job.recent,
        "pace": job.pace,
        "norms": job.norms,
        "norm_steps": job.norm_steps,
        "losses": job.losses,
    }


# --- reading ----------------------------------------------------------------------------------------------------------
def load_job(table: Table) -> JobState | None:
    """The state as last saved; None if there is none. Raises ValueError for rows that cannot be read."""
    facts, clock = table.get("facts"), table.get("clock")
    if facts is None or clock is None:
        return None
    values, _ = unpack(facts)
    job = JobState(cluster=values["cluster"], run=values["run"], job=values["job"])
    _read_facts(job, values)
    revision, _, packed = clock.partition(b"\n")
    job.revision = int(revision)
    _, arrays = unpack(packed)
    numbers = arrays["numbers"].tolist()
    job.flushed_ns = dict(zip(job.offsets, numbers[len(_CLOCK_NUMBERS) :], strict=True))
    for name, number in zip(_CLOCK_NUMBERS, numbers, strict=False):
        setattr(job, name, number)
    job.open_calls.put_back(arrays["open_calls"])
    job.newest_step = arrays["newest_step"]
    _read_progress(job, unpack(table.get("progress") or pack({}))[1])
    _read_steps(job, *unpack(table.get("steps") or pack({})))
    for name, row in table.rows():
        if name.startswith("open/"):
            job.chunks.append(name)
            _read_open(job, unpack(row)[1])
    if (gathered := table.get("gathered")) is not None:
        job.gathering.read(gathered)
        job.gathering_saved = True
    if (ledger := table.get("ledger")) is not None:  # not there before 0.8
        job.ledger = Ledger.unpack(ledger, run=job.run, job=job.job)
    job.rewrite_open = job.open_changed = False
    job.settle_facts()
    job.progress_changed = job.steps_changed = False
    return job


def _read_facts(job: JobState, values: dict[str, Any]) -> None:
    for name in _PLAIN_FACTS:
        setattr(job, name, values[name])
    for name in _LATER_FACTS:
        setattr(job, name, values.get(name, getattr(job, name)))
    job.attempts = Attempts.from_json(values["attempts"])
    for group in values["groups"]:
        job.add_group(Group(**group))
    job.ranks = {int(rank): _rank_facts(facts) for rank, facts in values["ranks"].items()}
    job.endings = [Ending(**ending) for ending in values["endings"]]
    job.raised = {ending.rank for ending in job.endings if ending.sort == "exception"}
    job.blind_ranks = set(values["blind_ranks"])
    job.nodes = {name: NodeFacts(**node) for name, node in values["nodes"].items()}
    job.findings = {item["key"]: OpenFinding(**item) for item in values["findings"]}


def _rank_facts(values: dict[str, Any]) -> RankFacts:
    calls = [CallSite(*call) for call in values.get("calls", ())]
    bad_inputs = [BadInput(*found) for found in values.get("bad_inputs", ())]
    return RankFacts(**{**values, "calls": calls, "bad_inputs": bad_inputs})


def _read_progress(job: JobState, arrays: dict[str, np.ndarray]) -> None:
    if not arrays:
        return
    job.progress, job.progress_stamps = arrays["progress"], arrays["stamps"]
    job.progress_stamp_ns = int(job.progress_stamps.max(initial=0))
    job.call_gaps = CallGaps.of_arrays(arrays)
    job.rare_until_ns = arrays["rare"]
    known = arrays["group_rows"].size  # groups are only ever added, at the end
    job.group_rows[:known], job.group_stamps[:known] = arrays["group_rows"], arrays["group_stamps"]
    job.note_ages(slice(0, known), job.group_rows[:known])
    job.note_ends(job.group_rows["group"][:known], job.group_rows[:known])


def _read_steps(job: JobState, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    if not values:
        return
    for name in _PLAIN_STEPS:
        setattr(job, name, values[name])
    job.last_seqs = {group: seq for group, seq in values["last_seqs"]}
    job.usual_counts = {group: count for group, count in values["usual_counts"]}
    job.even_steps = {group: count for group, count in values["even_steps"]}
    job.device_gaps = {group: gap_ns for group, gap_ns in values.get("device_gaps", ())}
    job.longest_ns = np.array(values["longest_ns"], np.int64)
    job.times = StepTimes(**{name: arrays[name] for name in StepTimes.__slots__})
    job.recent = arrays["recent"]
    if arrays["pace"].shape[1] == job.pace.shape[1]:  # without lengths before schema 7: known again after some minutes
        job.pace = arrays["pace"]
    job.drift = arrays["drift"]
    job.window = DeviceWindow.of_arrays(arrays, job.times.ranks.size)
    job.saves = Saves(**{name: arrays[f"save/{name}"] for name in Saves.__slots__})
    job.norms, job.norm_steps, job.losses = arrays["norms"], arrays["norm_steps"], arrays["losses"]


def _read_open(job: JobState, arrays: dict[str, np.ndarray]) -> None:
    tables = dict(_open_tables(job))
    offsets = arrays["offsets"].tolist()
    for place, rows in arrays.items():
        name, _, number = place.partition("/")
        if name in tables:
            lookup = arrays.get(f"lookup/{number}")
            rows = in_dtype(rows, tables[name].dtype)  # of an earlier release
            tables[name].add(Arrived(rows=rows, offset_ns=offsets[int(number)], groups=lookup), saved=True)
