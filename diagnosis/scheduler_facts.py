"""What schedulers say of a job and of its node: which attempt, until when, who else wants it, what is planned. Pure.

Sources: variables of a rank's environment, ``scontrol -o show job``, ``show res`` and ``show node``, a Kubernetes node
as JSON, labels that the downward API mounts. What is not said is not guessed: a fact without a value is no fact.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from ..telemetry.ring_layout import cut_text
from .data_file import read_toml
from .hostlist import HostlistError, expand_hostlist

_JOB_ID = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,9})?")
#: ``Key=Value`` of scontrol; a value runs to the next key, so that names with spaces stay whole.
_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z:/_]{1,40})=")
#: Who set a node's state, and when, stands behind why.
_NODE_REASON = re.compile(r"(?P<why>.*?)(?: ?\[[^\[\]@]*@(?P<time>[^\[\]]*)\])?", re.DOTALL)
_MAX_TEXT = 200
#: States of a job that is on its nodes and has not ended.
_RUNS = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "RESIZING", "SIGNALING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFact:
    """what: "attempt", "time_limit", "preemption", "requeue", "maintenance", "state", "allocation", "owner" (uid),
    "node_state" or "node_condition".

    job: "" for what concerns the node. values: only str, int, float and bool; times are Unix seconds ("end_s").
    """

    scheduler: str
    what: str
    job: str = ""
    values: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        """Tells facts apart that may be there at the same time. The same key with other values is news."""
        return self.scheduler, self.what, self.job, str(self.values.get("name", ""))


def slurm_job_id(environ: Mapping[str, str]) -> str:
    """The Slurm job's id among these variables, "" if there is none.

    Its form is checked, because it becomes an argument of a command.
    """
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    return job if _JOB_ID.fullmatch(job) else ""


def facts_of_environment(environ: Mapping[str, str]) -> Iterator[SchedulerFact]:
    """What a rank's variables tell of its job: attempt and time limit by Slurm, attempt by torchelastic or Ray."""
    job = slurm_job_id(environ)
    if job:
        restarts = _whole(environ.get("SLURM_RESTART_COUNT", "")) or 0
        yield SchedulerFact(scheduler="slurm", what="attempt", job=job, values={"attempt": restarts})
        end_s = _whole(environ.get("SLURM_JOB_END_TIME", ""))
        if end_s:
            yield SchedulerFact(scheduler="slurm", what="time_limit", job=job, values={"end_s": end_s})
    attempt = _whole(environ.get("TORCHELASTIC_RESTART_COUNT", ""))
    if attempt is not None:
        values: dict[str, str | int | float | bool] = {"attempt": attempt}
        most = _whole(environ.get("TORCHELASTIC_MAX_RESTARTS", ""))
        if most is not None:
            values["max_restarts"] = most
        run = environ.get("TORCHELASTIC_RUN_ID", "")
        yield SchedulerFact(scheduler="torchelastic", what="attempt", job="" if run == "none" else run, values=values)
    ray = environ.get("RAY_JOB_ID", "")
    if ray:
        yield SchedulerFact(scheduler="ray", what="state", job=ray, values={"node": environ.get("RAY_NODE_ID", "")})


_USER_ID = re.compile(r"[^()]*\(([0-9]{1,10})\)")


def _owners(job: str, line: str) -> Iterator[SchedulerFact]:
    """Whose the job is; of a task of an array by the name of the array, too.

    A job's name and comment are its user's words and may hold any key: an array's stand before them, and where
    somebody has written a second ``UserId=`` into the line nobody is said to be the owner.
    """
    user = _USER_ID.fullmatch(parse_pairs(line).get("UserId", ""))
    if user is None or line.count("UserId=") > 1:
        return
    before = parse_pairs(line.partition(" JobName=")[0])
    array, task = before.get("ArrayJobId", ""), before.get("ArrayTaskId", "")
    names = {job, f"{array}_{task}"} if _JOB_ID.fullmatch(f"{array}_{task}") else {job}
    for name in sorted(names):
        yield SchedulerFact(scheduler="slurm", what="owner", job=name, values={"owner_uid": int(user[1])})


# --- Slurm's own words ------------------------------------------------------------------------------------------------


def parse_pairs(line: str) -> dict[str, str]:
    """The values in one line of ``scontrol -o``, by key."""
    found: dict[str, str] = {}
    matches = list(_PAIR.finditer(line))
    ends = [match.start() for match in matches[1:]] + [len(line)]
    for match, end in zip(matches, ends, strict=False):  # a line without pairs has an end all the same
        found.setdefault(match[1], line[match.end() : end].strip()[:4000])
    return found


def _gpus_of_tres(text: str) -> int:
    """Of "cpu=64,node=2,gres/gpu=16,gres/gpu:h100=16"; 0 where none are counted. Kinds are told beside their sum."""
    counts: dict[str, int] = {}
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        if name == "gres/gpu" or name.startswith("gres/gpu:"):
            counts[name] = _whole(value) or 0
    return counts.get("gres/gpu") or sum(counts.values())


def parse_slurm_time(text: str) -> float | None:
    """Unix seconds of a time by Slurm: a number (SLURM_TIME_FORMAT=%s) or local time; None for anything else."""
    if text.isascii() and text.isdecimal() and len(text) <= 12:
        return float(text)
    try:
        return time.mktime(datetime.fromisoformat(text).timetuple())
    except (ValueError, OverflowError):
        return None


def facts_of_slurm_job(text: str) -> Iterator[SchedulerFact]:
    """What ``scontrol -o show job ID`` tells: state, GPUs, attempt, limits; a line for each job or component of one."""
    for line in text.splitlines()[:256]:
        pairs = parse_pairs(line)
        job = pairs.get("JobId", "")
        if not _JOB_ID.fullmatch(job):
            continue
        yield from _owners(job, line)
        state, reason = pairs.get("JobState", "")[:_MAX_TEXT], pairs.get("Reason", "")[:_MAX_TEXT]
        if state:
            yield SchedulerFact(scheduler="slurm", what="state", job=job, values={"state": state, "reason": reason})
        gpus = _gpus_of_tres(pairs.get("AllocTRES") or pairs.get("TRES", ""))
        if gpus and state == "RUNNING":
            yield SchedulerFact(scheduler="slurm", what="allocation", job=job, values={"gpus": gpus})
        restarts = _whole(pairs.get("Restarts", ""))
        if restarts is not None:
            yield SchedulerFact(scheduler="slurm", what="attempt", job=job, values={"attempt": restarts})
        if pairs.get("Requeue") in ("0", "1"):
            values = {"requeue": pairs["Requeue"] == "1"}
            yield SchedulerFact(scheduler="slurm", what="requeue", job=job, values=values)
        yield from _ends(job, state, pairs)


def _ends(job: str, state: str, pairs: Mapping[str, str]) -> Iterator[SchedulerFact]:
    """Until when the job may run. EndTime of one that has ended is when it did, and of a preempted one the grace's end.

    Slurm tells that grace only where the job has a time limit.
    """
    end_s, preempted_s = (parse_slurm_time(pairs.get(key, "")) for key in ("EndTime", "PreemptTime"))
    if preempted_s is not None or state == "PREEMPTED":
        values: dict[str, str | int | float | bool] = {"state": state}
        if preempted_s is not None:
            values["start_s"] = preempted_s
            if end_s is not None and end_s > preempted_s and state in _RUNS:
                values["end_s"] = end_s
        yield SchedulerFact(scheduler="slurm", what="preemption", job=job, values=values)
    elif end_s is not None and state in _RUNS and pairs.get("TimeLimit") != "UNLIMITED":
        yield SchedulerFact(scheduler="slurm", what="time_limit", job=job, values={"end_s": end_s})


def facts_of_reservations(text: str, nodes: Sequence[str]) -> Iterator[SchedulerFact]:
    """Maintenance that ``scontrol -o show res`` has planned for a node by one of these names."""
    short = {name.partition(".")[0] for name in nodes}
    for line in text.splitlines()[:4096]:
        pairs = parse_pairs(line)
        flags = pairs.get("Flags", "").upper().split(",")
        if "MAINT" not in flags or not _is_for(pairs.get("Nodes", ""), flags, short):
            continue
        start_s, end_s = (parse_slurm_time(pairs.get(key, "")) for key in ("StartTime", "EndTime"))
        if start_s is None or end_s is None:
            continue
        values: dict[str, str | int | float | bool] = {
            "name": pairs.get("ReservationName", "")[:_MAX_TEXT],
            "start_s": start_s,
            "end_s": end_s,
            "state": pairs.get("State", "")[:_MAX_TEXT],
        }
        yield SchedulerFact(scheduler="slurm", what="maintenance", values=values)


def is_slurm_node_of(text: str, hosts: Sequence[str]) -> bool:
    """Whether what ``scontrol -o show node NAME`` tells is of a machine with one of these host names."""
    pairs = parse_pairs(text.partition("\n")[0])
    told = {pairs.get(key, "").partition(".")[0] for key in ("NodeHostName", "NodeAddr")} - {""}
    return not told.isdisjoint(host.partition(".")[0] for host in hosts)


def facts_of_slurm_node(text: str) -> Iterator[SchedulerFact]:
    """What keeps jobs from a node by ``scontrol -o show node NAME``: a fact for each such state that it is in."""
    known = _notices()["slurm_states"]
    for line in text.splitlines()[:16]:
        pairs = parse_pairs(line)
        state = pairs.get("State", "")[:_MAX_TEXT]
        reason = _NODE_REASON.fullmatch(pairs.get("Reason", ""))
        values: dict[str, str | int | float | bool] = {"state": state}
        if reason is not None:
            values["reason"] = reason["why"][:_MAX_TEXT]
            since_s = parse_slurm_time(reason["time"] or "")
            if since_s is not None:
                values["since_s"] = since_s
        for word in sorted({known[flag] for flag in state.upper().rstrip("*$@^!%#~").split("+") if flag in known}):
            yield SchedulerFact(scheduler="slurm", what="node_state", values={"name": word, **values})


def _is_for(hostlist: str, flags: Sequence[str], short: set[str]) -> bool:
    if "ALL_NODES" in flags or hostlist == "ALL":
        return True
    try:
        return any(name.partition(".")[0] in short for name in expand_hostlist(hostlist))
    except HostlistError:
        return False


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def parse_downward_api(text: str) -> dict[str, str]:
    """Labels or annotations as the downward API writes them, ``key="escaped value"`` a line.

    Other lines are left out.
    """
    found: dict[str, str] = {}
    for line in text.splitlines()[:4096]:
        key, equals, value = line.partition("=")
        if not equals or not value.startswith('"'):
            continue
        try:
            text_value = json.loads(value)
        except ValueError:  # Go escapes more than JSON does
            text_value = value[1:].removesuffix('"')
        if isinstance(text_value, str):
            found[key.strip()] = text_value
    return found


def facts_of_pod(labels: Mapping[str, str]) -> Iterator[SchedulerFact]:
    """What a pod's labels tell: the attempt of a JobSet or a training operator's job."""
    job = labels.get("jobset.sigs.k8s.io/jobset-name") or labels.get("training.kubeflow.org/job-name") or ""
    attempt = _whole(labels.get("jobset.sigs.k8s.io/restart-attempt", ""))
    if attempt is not None:
        yield SchedulerFact(scheduler="kubernetes", what="attempt", job=job, values={"attempt": attempt})


def facts_of_kubernetes_node(document: object) -> Iterator[SchedulerFact]:
    """What a node's taints, conditions and annotations announce: maintenance, preemption, not ready; and what its
    conditions say is wrong with it (the kubelet's, node-problem-detector's).

    document: of ``kubectl get node -o json``, or its list of conditions alone.
    """
    if isinstance(document, list):
        document = {"status": {"conditions": document}}
    spec, status, about = (_table(document, key) for key in ("spec", "status", "metadata"))
    for taint in _tables(spec.get("taints")):
        yield from _notice("taints", str(taint.get("key", "")), str(taint.get("effect", "")))
    for condition in _tables(status.get("conditions")):
        kind = str(condition.get("type", ""))
        if condition.get("status") == "True":
            said = str(condition.get("message") or condition.get("reason") or "")
            yield from _notice("conditions", kind, said)
            if kind in _notices()["problems"]:
                name = _notices()["problems"][kind]
                values = {"name": kind, "condition": name, "text": cut_text(f"{kind}: {said}", _MAX_TEXT)}
                yield SchedulerFact(scheduler="kubernetes", what="node_condition", values=values)
        elif kind == "Ready":
            reason = str(condition.get("message") or condition.get("reason") or "")[:_MAX_TEXT]
            values = {"name": "not_ready", "state": "NotReady", "reason": reason}
            yield SchedulerFact(scheduler="kubernetes", what="node_state", values=values)
    for key, value in _table(about, "annotations").items():
        yield from _notice("annotations", str(key), str(value))


@cache
def _notices() -> Mapping[str, Mapping[str, str]]:
    return read_toml(__package__, "node_notices.toml")


def _notice(table: str, name: str, text: str) -> Iterator[SchedulerFact]:
    known = _notices()[table]
    what = known.get(name) or next(
        (word for key, word in known.items() if key.endswith("*") and name.startswith(key[:-1])), ""
    )
    if what:
        values = {"name": name[:_MAX_TEXT], "text": cut_text(text, _MAX_TEXT)}
        yield SchedulerFact(scheduler="kubernetes", what=what, values=values)


def _table(document: object, key: str) -> Mapping[str, Any]:
    found = document.get(key) if isinstance(document, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _tables(found: object) -> Iterator[Mapping[str, Any]]:
    for entry in found[:256] if isinstance(found, list) else ():
        if isinstance(entry, Mapping):
            yield entry


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else None
