"""A job's state as rows of table "job", and back. No pickle.

``revision`` number of the last change, ``facts`` slow-changing JSON, ``clock`` what changes with every batch (flush
times in the order of ``offsets`` in ``facts``, when nodes were heard in that of ``heard``), ``progress`` newest
progress rows, ``steps`` the window of closed steps (of a large job ``step/N`` each of them, see ``step_rows``),
``open/N`` rows of open steps as they came, one per batch, ``gathered`` blocks that are not taken yet, ``lists`` of
groups that messages refer to, ``dump/RANK`` facts of flight-recorder dumps, ``ledger`` what the seconds were spent on.
A change of what these rows hold raises ``state_versions.SCHEMA_VERSION``: a state of another version is set aside and
made anew from the bus.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any

import numpy as np

from ....telemetry.records import Group
from ...operator import Table
from ...placement_document import read_placement, write_move, write_placement
from ..columns.packing import pack, unpack
from ..detectors.crash.crash_order import Ending
from ..detectors.hang.call_gaps import CallGaps
from ..detectors.slow.checkpoint_straggler import Saves, no_saves
from ..detectors.slow.step_times import StepTimes
from . import open_step_rows, step_rows
from .accounting_state import Ledger
from .attempts import Attempts
from .checkpoint_saves import CheckpointSaves
from .device_window import DeviceWindow
from .emergency_save import EmergencySave
from .finding_rows import read_finding, write_finding
from .job_state import JobState
from .learned_times import LearnedTimes
from .placement_state import PlacementState
from .rank_state import BadInput, CallSite, NodeFacts, RankFacts, RankStack
from .witness_rows import read_witnesses, write_witnesses
from .witness_state import ROW as DUMP_ROW

#: Values that are saved as they are: the name in the row, and where they are in the job.
_PLAIN_FACTS = {
    "cluster": "cluster",
    "run": "run",
    "job": "job",
    "name": "name",
    "attempt": "attempt",
    "world_size": "world_size",
    "offsets": "nodes.offsets",
    "steps_before": "checkpoints.steps_before",
    "signalled_ns": "ends.signalled_ns",
    "finished_ns": "ends.finished_ns",
    "exit_code": "ends.exit_code",
    "nodes_expected": "nodes.expected",
    "judged_by": "judged_by",
    "judge_left": "judge_left",
}
#: Not there before these were told.
_LATER_FACTS = {
    "placement": "placement.told",
    "placement_due_ns": "placement.due_ns",
    "owner": "placement.owner",
    "gpus_held": "placement.gpus_held",
    "checkpoints": "checkpoints.by_place",
    "restored_steps": "checkpoints.restored_steps",
    "endings_judged_ns": "ends.endings_judged_ns",
    "inferred": "inferred",
}
_PLAIN_STEPS = {
    "saved_steps": "checkpoints.saved_steps",
    "slow_step_ns": "steps.slow_step_ns",
    "closed_step": "steps.closed_step",
    "pace_checked_step": "steps.pace_checked_step",
    "sighted": "steps.sighted",
}
#: The single numbers in ``clock``, in their order there.
_CLOCK_NUMBERS = (
    "due_ns",
    "steps.number_due_ns",
    "steps.counts_due_ns",
    "progress.joining_looked_ns",
    "open_steps.closed_stamp_ns",
)
#: The same, told later: an array of their own.
_LISTENING_NUMBERS = ("nodes.heard_ns", "nodes.listen_due_ns", "nodes.listened_ns", "nodes.looked_ns")
#: All of them by one call: they are written with every change.
_clock_numbers, _listening_numbers = attrgetter(*_CLOCK_NUMBERS), attrgetter(*_LISTENING_NUMBERS)


def _get(job: JobState, path: str) -> Any:
    return attrgetter(path)(job)


def _put(job: JobState, path: str, value: Any) -> None:
    part, _, name = path.rpartition(".")
    setattr(attrgetter(part)(job) if part else job, name, value)


# --- writing ----------------------------------------------------------------------------------------------------------
def save_job(job: JobState, table: Table) -> None:
    """Writes the rows that changed since the last call to ``table``, and settles what was unsaved.

    Rows that hold the whole job are made only when they are needed: of a job of 16,384 ranks ``progress`` is 6 MB, and
    2,000 messages a second change it.
    """
    if job.unsaved.facts:
        table.put_later("facts", lambda: _pack_facts(job))
        job.settle_facts()
    if job.unsaved.progress:
        table.put_later("progress", lambda: pack({}, _progress_arrays(job)))
    if job.unsaved.steps:
        table.put_later("steps", lambda: pack(_steps_values(job), _steps_arrays(job)))
        if job.kept_steps or job.steps.times.ranks.size >= step_rows.FEWEST_RANKS:
            step_rows.save_steps(job, table)
    if job.unsaved.lists:
        table.put_later("lists", lambda: pack({}, job.groups.lists()))
        job.unsaved.lists = False
    if job.ledger.changed:
        table.put_later("ledger", job.ledger.pack)
        job.ledger.changed = False
    if job.findings.witnesses.unsaved or job.findings.witnesses.stale:
        job.findings.witnesses.save_dumps(table)
    if job.open_steps.changed or job.open_steps.rewrite:
        open_step_rows.save_open(job, table)
    if job.gathering.due_ns or job.unsaved.gathering:
        table.put_later("gathered", job.gathering.pack)
        job.unsaved.gathering = job.gathering.is_put = job.gathering.due_ns > 0
    job.unsaved.progress = job.unsaved.steps = False
    job.open_steps.changed = False
    job.unsaved.revision += 1
    table.put("revision", b"%d" % job.unsaved.revision)
    table.put_later("clock", lambda: _clock(job))


def _clock(job: JobState) -> bytes:
    numbers = list(_clock_numbers(job))
    numbers += [job.progress.flushed_ns.get(node, 0) for node in job.nodes.offsets]
    arrays = {
        "numbers": np.array(numbers),
        "open_calls": job.open_steps.open_calls.as_array(),
        "newest_step": job.steps.newest_step,
    }
    if job.nodes.heard:
        arrays["listening"] = np.array(_listening_numbers(job))
        arrays["heard"] = job.nodes.heard_times()
    if job.open_steps.summed_step.size:
        arrays["summed_step"] = job.open_steps.summed_step
    return b"%d\n%s" % (job.unsaved.revision, pack({}, arrays))


def is_current(job: JobState, table: Table) -> bool:
    """Whether this working copy is what the rows say (it is not after the runner rolled back).

    A state of an earlier release has no such row before its first change.
    """
    return table.get("revision") == b"%d" % job.unsaved.revision


def _pack_facts(job: JobState) -> bytes:
    return pack(_facts_values(job), texts={"ranks": job.unsaved.rank_texts.text(job.ranks)})


def _facts_values(job: JobState) -> dict[str, Any]:
    return {
        **{name: _get(job, path) for name, path in (_PLAIN_FACTS | _LATER_FACTS).items()},
        "placement": _told_placement(job.placement),
        "saves": job.checkpoints.saves.as_rows(),
        "emergency": None if job.checkpoints.emergency is None else job.checkpoints.emergency.as_row(),
        "attempts": write_attempts(job.attempts),
        "groups": [{name: getattr(group, name) for name in Group.__slots__} for group in job.groups.known],
        "endings": [asdict(ending) for ending in job.ends.endings],
        "blind_ranks": sorted(job.blind_ranks),
        "nodes": {name: asdict(node) for name, node in job.nodes.known.items()},
        "heard": list(job.nodes.heard),
        "witnesses": write_witnesses(job.findings.witnesses),
        "learned": job.attempts.learned.write(),
        "findings": [write_finding(finding) for finding in job.findings.by_key.values()],
    }


def _told_placement(placement: PlacementState) -> dict[str, Any]:
    if placement.told is None:
        return {}
    written = {**write_placement(replace(placement.told, moved=None)), "told": placement.times_told}
    moved = placement.told.moved
    return written if moved is None else {**written, "moved": write_move(moved)}


def write_attempts(attempts: Attempts) -> dict[str, Any]:
    """The attempts as JSON values, for ``read_attempts``."""
    return {
        "count": attempts.count,
        "founder": attempts.founder,
        "name": attempts.name,
        "members": {member: sorted(ranks) for member, ranks in attempts.members.items()},
        "started_ns": attempts.started_ns,
        "tokens": attempts.tokens,
        "ended_ns": attempts.ended_ns,
        "again": sorted(attempts.again),
        "over": sorted(attempts.over),
        "past": attempts.past,
    }


def _progress_arrays(job: JobState) -> dict[str, np.ndarray]:
    progress = {"progress": job.progress.rows, "stamps": job.progress.stamps, "rare": job.progress.rare_until_ns}
    gaps = {} if job.steps.are_seen() else job.progress.call_gaps.as_arrays()
    return {**progress, "group_rows": job.groups.rows, "group_stamps": job.groups.stamps, **gaps}


def _steps_values(job: JobState) -> dict[str, Any]:
    return {
        **{name: _get(job, path) for name, path in _PLAIN_STEPS.items()},
        "last_seqs": list(job.steps.last_seqs.items()),
        "usual_counts": list(job.steps.usual_counts.items()),
        "even_steps": list(job.steps.even_steps.items()),
        "device_gaps": list(job.groups.device_gaps.items()),
        "longest_ns": job.steps.longest_ns.tolist(),
        "first_ns": job.steps.first_ns.tolist(),
    }


def _steps_arrays(job: JobState) -> dict[str, np.ndarray]:
    times = {name: getattr(job.steps.times, name) for name in StepTimes.__slots__}
    saves = {f"save/{name}": getattr(job.steps.saves, name) for name in Saves.__slots__}
    apart = step_rows.tables_of(job.steps).keys() if step_rows.is_apart(job.steps) else ()
    arrays = {
        **times,
        **saves,
        "drift": job.steps.drift,
        **job.steps.window.arrays(),
        "recent": job.steps.recent,
        "pace": job.steps.pace,
        "norms": job.steps.norms,
        "norm_steps": job.steps.norm_steps,
        "losses": job.steps.losses,
    }
    return {name: array for name, array in arrays.items() if name not in apart}


# --- reading ----------------------------------------------------------------------------------------------------------
def load_job(table: Table) -> JobState | None:
    """The job as ``save_job`` last wrote it; None if nothing is there. Raises KeyError, TypeError or ValueError for
    what is none.
    """
    facts, clock = table.get("facts"), table.get("clock")
    if facts is None or clock is None:
        return None
    values, _ = unpack(facts)
    job = JobState(cluster=values["cluster"], run=values["run"], job=values["job"])
    heard: list[str] = values.get("heard", [])
    _read_facts(job, values)
    revision, _, packed = clock.partition(b"\n")
    job.unsaved.revision = int(revision)
    _, arrays = unpack(packed)
    numbers = arrays["numbers"].tolist()
    job.progress.flushed_ns = dict(zip(job.nodes.offsets, numbers[len(_CLOCK_NUMBERS) :], strict=True))
    for path, number in zip(_CLOCK_NUMBERS, numbers, strict=False):
        _put(job, path, number)
    if "listening" in arrays:  # of an earlier release: every silence counts anew
        for path, number in zip(_LISTENING_NUMBERS, arrays["listening"].tolist(), strict=False):
            _put(job, path, number)
    if "heard" in arrays:
        job.nodes.put_back_heard(heard, arrays["heard"])
    job.open_steps.open_calls.put_back(arrays["open_calls"])
    job.steps.newest_step = arrays["newest_step"]
    job.open_steps.summed_step = arrays.get("summed_step", job.open_steps.summed_step)  # not there before schema 10
    _read_progress(job, unpack(table.get("progress") or pack({}))[1])
    values, arrays = unpack(table.get("steps") or pack({}))
    if values and "self_ns" not in arrays:
        arrays |= step_rows.load_steps(table, arrays["ranks"])
    _read_steps(job, values, arrays)
    step_rows.note_loaded(job)
    for name, row in table.rows():
        if name.startswith("open/"):
            job.open_steps.chunks.append(name)
            open_step_rows.read_open(job, unpack(row)[1])
        elif name.startswith(DUMP_ROW):
            job.findings.witnesses.read_dump(name, row)
    if (gathered := table.get("gathered")) is not None:
        job.gathering.read(gathered)
        job.unsaved.gathering = True
    if (lists := table.get("lists")) is not None:
        job.groups.put_back_lists(unpack(lists)[1])
    if (ledger := table.get("ledger")) is not None:  # not there before 0.8
        job.ledger = Ledger.unpack(ledger, run=job.run, job=job.job)
    job.open_steps.rewrite = job.open_steps.changed = False
    job.settle_facts()
    job.unsaved.progress = job.unsaved.steps = False
    return job


def _read_facts(job: JobState, values: dict[str, Any]) -> None:
    for name, path in _PLAIN_FACTS.items():
        _put(job, path, values[name])
    for name, path in _LATER_FACTS.items():
        if name != "placement":
            _put(job, path, values.get(name, _get(job, path)))
    job.name_attempt(job.attempt)
    if told := values.get("placement"):
        job.placement.told, job.placement.times_told = read_placement(told), int(told["told"])
    else:
        job.placement.told = None
    if "saves" in values:  # not there in state of earlier releases
        job.checkpoints.saves = CheckpointSaves.of_rows(values["saves"])
    job.checkpoints.emergency = EmergencySave.of_row(values.get("emergency"))
    job.attempts = read_attempts(values["attempts"])
    for group in values["groups"]:
        job.groups.add(Group(**group), was_kept=True)
    job.ranks = {int(rank): _rank_facts(facts) for rank, facts in values["ranks"].items()}
    job.ends.put_back([Ending(**ending) for ending in values["endings"]])
    job.blind_ranks = set(values["blind_ranks"])
    job.nodes.known = {name: NodeFacts(**node) for name, node in values["nodes"].items()}
    job.findings.witnesses = read_witnesses(values.get("witnesses", {}))
    job.attempts.learned = LearnedTimes.read(values.get("learned", []))
    job.findings.by_key = {item["key"]: read_finding(item) for item in values["findings"]}


def _rank_facts(values: dict[str, Any]) -> RankFacts:
    calls = [CallSite(*call) for call in values.get("calls", ())]
    bad_inputs = [BadInput(*found) for found in values.get("bad_inputs", ())]
    stack = RankStack(**told) if (told := values.get("stack")) else None
    return RankFacts(**{**values, "stack": stack, "calls": calls, "bad_inputs": bad_inputs})


def read_attempts(values: dict[str, Any]) -> Attempts:
    """Attempts from what ``write_attempts`` of this release or an earlier one gave. Raises KeyError for
    what are none.
    """
    attempts = Attempts()
    attempts.count, attempts.founder = values["count"], values["founder"]
    attempts.name = values.get("name", attempts.founder)
    attempts.members = {member: set(ranks) for member, ranks in values["members"].items()}
    attempts.started_ns, attempts.tokens = values["started_ns"], values["tokens"]
    attempts.ended_ns, attempts.again = values.get("ended_ns", {}), set(values.get("again", ()))
    attempts.over = set(values.get("over", ()))
    attempts.past = values["past"]
    return attempts


def _read_progress(job: JobState, arrays: dict[str, np.ndarray]) -> None:
    if not arrays:
        return
    job.progress.rows, job.progress.stamps = arrays["progress"], arrays["stamps"]
    job.progress.newest_stamp_ns = int(job.progress.stamps.max(initial=0))
    job.progress.call_gaps = CallGaps.of_arrays(arrays)
    job.progress.rare_until_ns = arrays["rare"]
    known = arrays["group_rows"].size  # groups are only ever added, at the end
    job.groups.rows[:known], job.groups.stamps[:known] = arrays["group_rows"], arrays["group_stamps"]
    job.groups.note_ages(slice(0, known), job.groups.rows[:known])
    job.groups.note_ends(job.groups.rows["group"][:known], job.groups.rows[:known])


def _read_steps(job: JobState, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    if not values:
        return
    for name, path in _PLAIN_STEPS.items():
        _put(job, path, values[name])
    job.steps.last_seqs = {group: seq for group, seq in values["last_seqs"]}
    job.steps.usual_counts = {group: count for group, count in values["usual_counts"]}
    job.steps.even_steps = {group: count for group, count in values["even_steps"]}
    job.groups.device_gaps = {group: gap_ns for group, gap_ns in values.get("device_gaps", ())}
    job.steps.longest_ns = np.array(values["longest_ns"], np.int64)
    job.steps.first_ns = np.array(values.get("first_ns", [0] * len(job.steps.longest_ns)), np.int64)
    job.steps.times = StepTimes(**{name: arrays[name] for name in StepTimes.__slots__})
    job.steps.recent = arrays["recent"]
    # Without lengths before schema 7: known again after some minutes.
    if arrays["pace"].shape[1] == job.steps.pace.shape[1]:
        job.steps.pace = arrays["pace"]
    job.steps.drift = arrays["drift"]
    job.steps.window = DeviceWindow.of_arrays(arrays, job.steps.times.ranks.size)
    saved = {name: arrays[f"save/{name}"] for name in Saves.__slots__ if f"save/{name}" in arrays}
    # Without quick ones before 2026-12: known again after two.
    job.steps.saves = replace(no_saves(saved["ranks"]), **saved)
    job.steps.norms, job.steps.norm_steps, job.steps.losses = arrays["norms"], arrays["norm_steps"], arrays["losses"]
