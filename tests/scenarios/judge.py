"""Compares what whichrank wrote with what was true. Pure: outcome and logs in, verdict out.

A run is right when bucket, kind, suspect, number of incidents, evidence and ruled-out ranks are all right; every way
in which it is not is one line of ``problems``. A missing incident is wrong like any other.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .plan import Blame, Ending, Pace, Scenario, Truth
from .runner import Outcome

APART = ("planned", "telemetry")
#: Steps of one rank in order, with the Unix time at which each ended; a later attempt may go through some again.
StepEnds = Sequence[tuple[int, float]]
#: A fault that ended in mid-run is over once fifteen good steps are done, or ten seconds later.
RESOLVED_WITHIN_STEPS = 15
RESOLVED_WITHIN_S = 10.0
ONSET_WITHIN_S = 1.0
#: Conditions without an event of their own: the next look of a collector finds them.
SEEN_BY_LOOKS = frozenset({"nvlink_down", "gpu_throttled", "mount_stalls"})
LOOK_S = 15.0
#: A hang without any fault of its node is of the program, once every fault would have been told; before of the rank.
OF_THE_PROGRAM, HANGS_OF_PROGRAMS = "no_node_fault", frozenset({"rank_not_entered"})
#: What a rank that printed an error looks like in its own log.
PRINTED_ERROR = re.compile(r"Traceback \(most recent call last\)|terminate called|Fatal Python error", re.MULTILINE)
RANKS = re.compile(r"\branks?\s*((?:\d+(?:\s*-\s*\d+)?)(?:(?:\s*,\s*|\s+and\s+)\d+(?:\s*-\s*\d+)?)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """problems: empty = right. delay_s: true onset to the incident's line in the file; None: not asked or none came.

    said: bucket and kind of the first incident, or "none". onset_right: the onset told is true; None: not judged.
    resolved_s: end of the fault to the incident's last line; None: the fault did not end before the job.
    steps: slow steps that the guilty rank finished before the incident stood there. limit_s: what was asked.
    blamed: whether anyone was named. located: the suspect's line of code is the true one; None: no stack to find.
    apart: planned and telemetry incidents, which are not counted among the incidents. excused: silence was right.
    blames_innocents: somebody was named who is not guilty.
    """

    problems: tuple[str, ...]
    incidents: int
    apart: int
    blamed: bool
    delay_s: float | None = None
    limit_s: float | None = None
    steps: int | None = None
    located: bool | None = None
    said: str = "none"
    onset_right: bool | None = None
    resolved_s: float | None = None
    excused: bool = False
    blames_innocents: bool = False

    @property
    def right(self) -> bool:
        return not self.problems


def latest_by_id(revisions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The last revision of each incident, oldest incident first; what merged into another is that other."""
    latest: dict[str, Mapping[str, Any]] = {}
    for document in revisions:
        latest[str(document["id"])] = document
    return [document for document in latest.values() if document["state"] != "merged"]


def ranks_in(text: str) -> set[int]:
    """Every rank that a phrase such as "ranks 0-2, 5" or "rank 3" names."""
    found: set[int] = set()
    for match in RANKS.finditer(text):
        for first, last in re.findall(r"(\d+)(?:\s*-\s*(\d+))?", match.group(1)):
            found.update(range(int(first), int(last or first) + 1))
    return found


def printed_errors(logs: Path) -> set[int]:
    """Ranks whose own stderr log holds an error (``torchrun --log-dir``: …/attempt_0/RANK/stderr.log)."""
    return {
        int(path.parent.name)
        for path in logs.glob("**/stderr.log")
        if PRINTED_ERROR.search(path.read_text(errors="replace"))
    }


def hang_limit_s(step_s: float, ends: Sequence[float]) -> float:
    """What is asked of a hang: 5 s or 3 steps, or what the job's own longest step makes reasonable.

    ends: Unix times at which the steps before the fault ended. The first step is left out: nothing says when it began.
    """
    lengths = [late - early for early, late in itertools.pairwise(ends)]
    if not lengths:
        return max(5.0, 3.0 * step_s)
    return max(5.0, 3.0 * max(step_s, statistics.median(lengths)), 1.3 * max(lengths) + 1.0)


def judge(scenario: Scenario, outcome: Outcome, printed: Collection[int], step_ends: StepEnds) -> Verdict:
    """printed: ranks that printed an error. step_ends: each step of the guilty rank, and the Unix time of its end."""
    truth, plan = scenario.truth, outcome.plan
    documents = latest_by_id(outcome.revisions)
    # A fault of whichrank itself is a telemetry incident, and must be no more than that.
    apart = ("planned",) if truth.bucket == "telemetry" else APART
    counted = [document for document in documents if document["bucket"] not in apart]
    planned = [document for document in documents if document["bucket"] == "planned"]
    problems: list[str] = []
    if outcome.harness_error:
        problems.append(f"harness: {outcome.harness_error}")
    if outcome.exit_code is None:
        problems.append("whichrank run did not end after SIGTERM")
    if scenario.clean_s >= 90.0 and outcome.ended - outcome.began < 90.0:
        problems.append("shorter than 90 s")
    if truth.bucket in ("", "planned"):
        problems += _blind_problems(outcome) if scenario.sees_all else []
        problems += [f"false alarm: {describe(document)}" for document in counted]
        if truth.bucket == "planned" and len(planned) != 1:
            problems.append(f"{len(planned)} planned incidents instead of 1")
        problems += [
            f"kind {document['kind']} instead of {truth.kind}" for document in planned if document["kind"] != truth.kind
        ]
        problems += [f"blames {suspect_ranks(document)}" for document in planned if document["suspects"]]
        if truth.bucket == "" and planned:
            problems.append(f"calls a run planned that nobody stopped: {describe(planned[0])}")
        if truth.bucket == "" and outcome.exit_code not in (0, None):
            problems.append(f"exit status {outcome.exit_code} of a job that ended well")
        return Verdict(
            problems=tuple(problems),
            incidents=len(counted),
            apart=len(documents) - len(counted),
            blamed=any(document["suspects"] for document in documents),
            said=next((_words(document) for document in (*counted, *planned)), "none"),
            blames_innocents=any(document["suspects"] for document in (*counted, *planned)),
        )
    if not counted:
        if not truth.silence:
            problems.append("no incident")
        return Verdict(problems=tuple(problems), incidents=0, apart=len(documents), blamed=False, excused=truth.silence)
    if len(counted) != truth.incidents:
        problems.append(f"{len(counted)} incidents: {'; '.join(describe(item) for item in counted)}")
    aware = truth.incidents == 1 or [d["history"]["suspect_incidents"] for d in counted] == [*range(len(counted))]
    if not aware:
        problems.append("the incidents do not know of each other")
    incident = counted[0]
    guilty = set(plan.guilty)
    named = set(suspect_ranks(incident))
    if incident["bucket"] != truth.bucket:
        problems.append(f"bucket {incident['bucket']} instead of {truth.bucket}")
    if incident["kind"] not in (truth.kind, *truth.kinds):
        problems.append(f"kind {incident['kind']} instead of {' or '.join((truth.kind, *truth.kinds))}")
    scopes = ("application",) if _is_of_the_program(incident) else (truth.scope, *truth.scopes)
    if truth.scope and incident["scope"] not in scopes:
        problems.append(f"scope {incident['scope']} instead of {truth.scope}")
    problems += _cause_problems(truth, incident, outcome)
    problems += _suspect_problems(truth.blame, named, guilty, plan.world_size)
    if truth.blame is not Blame.NOBODY and (named or truth.blame is not Blame.NO_INNOCENT):
        problems += evidence_problems(incident, plan.guilty[0], outcome.pids.get(plan.guilty[0]))
    if truth.phases:
        phase = next((_where(s).get("phase") for s in incident["suspects"]), None)
        if phase not in truth.phases:
            problems.append(f"in phase {phase} instead of {' or '.join(truth.phases)}")
    if truth.words and not any(word in str(item["shows"]) for word in truth.words for item in incident["evidence"]):
        problems.append(f"no evidence says {' or '.join(truth.words)}")
    if truth.severities:
        said = [document["severity"] for document in outcome.revisions if document["id"] == incident["id"]]
        turns = tuple(word for word, _ in itertools.groupby(said))
        if turns != truth.severities:
            problems.append(f"severity {', then '.join(turns)} instead of {', then '.join(truth.severities)}")
    problems += _onset_problems(truth, incident, outcome)
    problems += _ending_problems(scenario, outcome, incident, step_ends)
    innocents = set(printed) - (guilty if truth.blame is not Blame.NOBODY else set()) - named
    cleared = {rank for item in incident["ruled_out"] for rank in ranks_in(str(item["who"]))}
    if innocents - cleared:
        problems.append(f"printed an error and not ruled out: {sorted(innocents - cleared)}")
    if cleared & guilty and truth.blame is not Blame.NOBODY:
        problems.append(f"rules out the guilty rank {sorted(cleared & guilty)}")
    onset = max((item.realtime for item in outcome.onsets), default=None)
    # After a restart the same steps come again.
    history = [end for _, end in sorted(step_ends) if onset is None or end < onset]
    slow = [end for step, end in step_ends if step >= plan.onset_step]
    seen = outcome.seen.get(str(incident["id"]))
    early = min((item.realtime for item in outcome.onsets), default=0.0)
    counts_from = max(outcome.waits.values(), default=None) if truth.pace is Pace.WITHIN else None
    counts_from = onset if counts_from is None or onset is None else max(onset, counts_from)
    delay = seen - counts_from if counts_from is not None and seen is not None else None
    if seen is not None and seen < early:
        problems.append(f"incident {early - seen:.1f} s before the fault")
    limits = {
        Pace.INSTANT: 1.0,
        Pace.HANG: hang_limit_s(plan.step_s, history),
        Pace.WITHIN: truth.within_s,
    }
    return Verdict(
        problems=tuple(problems),
        incidents=len(counted),
        apart=len(documents) - len(counted),
        blamed=bool(named),
        delay_s=delay,
        limit_s=limits.get(truth.pace),
        steps=sum(end <= seen for end in slow) if truth.pace is Pace.STEPS and seen else None,
        located=_located(incident, outcome) if truth.leaves_stack else None,
        said=_words(incident),
        blames_innocents=bool(_suspect_problems(truth.blame, named, guilty, plan.world_size) and named - guilty),
        onset_right=_onset_right(scenario, outcome, incident),
        resolved_s=_resolved_after_s(scenario, outcome, incident, step_ends),
    )


def _cause_problems(truth: Truth, incident: Mapping[str, Any], outcome: Outcome) -> list[str]:
    """The condition named as the cause, its device (``devices`` in the truth folder: rank -> GPU), and its place."""
    cause = incident.get("cause")
    if not truth.causes:
        if _is_of_the_program(incident) and truth.kind in HANGS_OF_PROGRAMS:
            return []
        return [f"names {cause['condition']} as the cause"] if cause else []
    if not cause:
        return [f"no cause instead of {' or '.join(truth.causes)}"]
    problems = []
    if cause["condition"] not in truth.causes:
        problems.append(f"because of {cause['condition']} instead of {' or '.join(truth.causes)}")
    rows = [row for row in incident["evidence"] if row.get("condition") == cause["condition"]]
    onset = float(incident["times"]["onset"])
    if not rows:
        problems.append("the cause is not in the evidence")
    elif cause["since"] > onset + (LOOK_S if cause["condition"] in SEEN_BY_LOOKS else ONSET_WITHIN_S):
        problems.append(f"the cause came {cause['since'] - onset:.1f} s after the onset")
    gpus: dict[str, str] = outcome.devices
    if cause["device_kind"] == "gpu":
        right = {gpus.get(str(rank)) for rank in outcome.plan.guilty}
        if str(cause["device"]).partition("/")[0] not in right:
            problems.append(f"device {cause['device']} instead of {right}")
        if any(suspect.get("gpu") not in right for suspect in incident["suspects"]):
            problems.append("a suspect has no or another GPU")
    return problems


def _is_of_the_program(incident: Mapping[str, Any]) -> bool:
    return bool(incident.get("cause")) and incident["cause"]["condition"] == OF_THE_PROGRAM


def _onset_problems(truth: Truth, incident: Mapping[str, Any], outcome: Outcome) -> list[str]:
    if truth.onset_within < 0 or not outcome.onsets:
        return []
    first, said = min(item.step for item in outcome.onsets), incident["first_bad"]["step"]
    right = said is not None and abs(said - first) <= truth.onset_within
    return [] if right else [f"first bad step {said} instead of {first}"]


def fault_end(scenario: Scenario, outcome: Outcome, step_ends: StepEnds) -> float | None:
    """Unix seconds at which the fault was over while the job went on: told by itself, or a later attempt passed it."""
    if outcome.fault_ended is not None or not scenario.restarts or not outcome.onsets:
        return outcome.fault_ended
    onset = max(item.realtime for item in outcome.onsets)
    return min((end for step, end in step_ends if step > outcome.plan.onset_step and end > onset), default=None)


def _resolved_after_s(
    scenario: Scenario, outcome: Outcome, incident: Mapping[str, Any], step_ends: StepEnds
) -> float | None:
    ended, resolved = fault_end(scenario, outcome, step_ends), outcome.resolved_seen.get(str(incident["id"]))
    return resolved - ended if ended is not None and resolved is not None else None


def _ending_problems(
    scenario: Scenario, outcome: Outcome, incident: Mapping[str, Any], step_ends: StepEnds
) -> list[str]:
    """It ends with its fault: when that is over, or its owner ends the job; one that the job died of stays open."""
    ended = fault_end(scenario, outcome, step_ends)
    if ended is None and scenario.truth.resolves:
        return ["harness: the fault did not end in this run"]
    if ended is not None:
        after = _resolved_after_s(scenario, outcome, incident, step_ends)
        good = [end for _, end in step_ends if end > ended]
        limit = max([RESOLVED_WITHIN_S, *(end - ended for end in good[:RESOLVED_WITHIN_STEPS])])
        if after is None:
            return ["still open after its fault had ended"]
        if after < -ONSET_WITHIN_S:
            return [f"resolved {-after:.1f} s before its fault ended"]
        return [] if after <= limit else [f"resolved {after:.1f} s after its fault ended, later than {limit:.1f} s"]
    resolved = incident["state"] == "resolved"
    if outcome.stopped_by_runner and scenario.ending in (Ending.CRASHES, Ending.EITHER):
        return []  # it was dying by itself when it was told to end: either may be said
    if outcome.stopped_by_runner or (scenario.ending is Ending.RUNS and outcome.exit_code == 0):
        return [] if resolved else ["still open after the end of the job"]
    return ["resolved, although the job died of it"] if resolved else []


def _onset_right(scenario: Scenario, outcome: Outcome, incident: Mapping[str, Any]) -> bool | None:
    truth, plan = scenario.truth, outcome.plan
    if truth.pace is Pace.WITHIN or not outcome.onsets or plan.onset_step < 0:
        return None
    if truth.pace is Pace.STEPS:
        step = (incident.get("first_bad") or {}).get("step")
        return step is not None and abs(int(step) - plan.onset_step) <= 1
    told = (incident.get("times") or {}).get("onset")
    return told is not None and any(abs(float(told) - item.realtime) <= ONSET_WITHIN_S for item in outcome.onsets)


def _blind_problems(outcome: Outcome) -> list[str]:
    """Silence counts only of a watcher that saw the job: all steps, but for one under way at a stop."""
    captured = outcome.steps_captured
    if not any(outcome.steps_done.values()):
        return ["harness: the job did no step"]
    blind = [rank for rank, done in sorted(outcome.steps_done.items()) if captured.get(rank, 0) < done - 1]
    return [f"did not see the steps of ranks {blind}: captured {captured}, done {outcome.steps_done}"] if blind else []


def _suspect_problems(blame: Blame, named: set[int], guilty: set[int], world_size: int) -> list[str]:
    right = [guilty]
    if blame is Blame.NOBODY:
        right = [set()]
    elif blame is Blame.NO_INNOCENT:
        return [] if named <= guilty else [f"names {sorted(named - guilty)}, innocent"]
    elif blame is Blame.DIVERGING and world_size == 2:
        right = [guilty, {0, 1}]
    return [] if named in right else [f"names {sorted(named)} instead of {' or '.join(str(sorted(r)) for r in right)}"]


def _words(document: Mapping[str, Any]) -> str:
    return f"{document['bucket']}/{document['kind']}"


def evidence_problems(incident: Mapping[str, Any], guilty: int, pid: int | None) -> list[str]:
    for item in incident["evidence"]:
        words = f"{item.get('source', '')} {item.get('shows', '')}"
        if guilty in ranks_in(words) or (pid is not None and re.search(rf"\b{pid}\b", words)):
            return []
    return [f"no evidence from rank {guilty} or its process"]


def _where(suspect: Mapping[str, Any]) -> Mapping[str, Any]:
    where = suspect.get("where")
    return where if isinstance(where, Mapping) else {}


def _located(incident: Mapping[str, Any], outcome: Outcome) -> bool:
    """The suspect's line is within the fault's own function, or, stuck behind a loader worker, in the script."""
    truths = {item.rank: item for item in outcome.onsets}
    for suspect in incident["suspects"]:
        onset, where = truths.get(suspect.get("rank")), _where(suspect)
        if onset is None or not where.get("file") or where.get("line") is None:
            continue
        name = Path(str(where["file"])).name
        if name == onset.file and onset.lines[0] <= int(where["line"]) <= onset.lines[1]:
            return True
        if outcome.plan.options.get("loader_workers") and name == f"{outcome.plan.workload}.py":
            return True
    return False


def suspect_ranks(incident: Mapping[str, Any]) -> list[int]:
    """A suspected node stands for its ranks."""
    named: list[int] = []
    for suspect in incident["suspects"]:
        if suspect.get("rank") is not None:
            named.append(suspect["rank"])
        elif suspect.get("ranks"):
            named += sorted(ranks_in(f"ranks {suspect['ranks']}"))
    return named


def describe(document: Mapping[str, Any]) -> str:
    return f"{document['bucket']}/{document['kind']} naming {suspect_ranks(document)}"


def judge_folder(scenario: Scenario, outcome: Outcome) -> Verdict:
    """The shell of ``judge``: reads the ranks' logs and step times beside the outcome."""
    ends: list[tuple[int, float]] = []
    if outcome.plan.guilty:
        path = outcome.folder / "truth" / f"steps-{outcome.plan.guilty[0]}.txt"
        for line in path.read_text().splitlines() if path.exists() else ():
            step, when = line.split()
            ends.append((int(step), float(when)))
    return judge(scenario, outcome, printed_errors(outcome.folder / "logs"), ends)
