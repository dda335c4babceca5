"""Job logs of public projects, read by ``diagnosis.job_log`` and compared with the answers of their sources.

Only input columns are read: lines and whole logs, never the exit code. The sources' words stand in ``job_log.toml``.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.scoreboard.score import Score, Scorer
from whichrank.diagnosis.job_log.job_log_reader import JobLog, LogSource, read_job_logs
from whichrank.diagnosis.job_log.log_verdict import failures, precursors, terminal
from whichrank.diagnosis.job_log.model import Episode, Form, LineRole, Restart, StatementGroup
from whichrank.diagnosis.job_log.taxonomy import failure_classes
from whichrank.diagnosis.job_log.witnesses import of_exit_code

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

WORDS = Path(__file__).with_suffix(".toml")
LINE_TABLES = ("nvidia-resiliency-ext/joblog_lines.tsv", "nvrx/l0_lines.tsv")
CASES = ("nvrx/log_cases.jsonl", "nvidia-resiliency-ext/joblog_primary_failure.jsonl")


@cache
def words() -> dict[str, Any]:
    tables: dict[str, Any] = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    return tables


def read(lines: Sequence[str], *, is_ended: bool = True) -> JobLog:
    text = "\n".join(lines) + ("\n" if is_ended else "")
    return read_job_logs([LogSource(name="log", file=io.BytesIO(text.encode("utf-8", "surrogateescape")))])


# --- mechanical changes ----------------------------------------------------------------------------------------------

Change = Callable[[Sequence[str]], tuple[list[str], dict[int, int]]]
"""Lines in; changed lines out, and for each old line number (from 1) its new one."""

NOISE = (
    "INFO:trainer.data:prefetched 64 batches",
    "iteration time 412.1 ms, throughput 93.2 TFLOP/s per GPU",
    "NCCL INFO Channel 03/0 : 4[4] -> 5[5] via P2P/CUMEM",
)
RANK = re.compile(r"(^(?=\d+: )|\[rank|\b[Rr]ank )(\d+)")
RANK_SHIFT = 40


def _identity(count: int) -> dict[int, int]:
    return {number: number for number in range(1, count + 1)}


def each_line(write: Callable[[str, int], str]) -> Change:
    def change(lines: Sequence[str]) -> tuple[list[str], dict[int, int]]:
        return [write(line, index) for index, line in enumerate(lines)], _identity(len(lines))

    return change


def other_hosts(line: str, _: int) -> str:
    line = re.sub(r"\b(?:gpu|node|nvl)(\d[\w-]*)", lambda match: f"cw-dfw-h200-{match[1]}", line)
    return re.sub(r"0000:([0-9a-f]{2}):", "0000:e7:", line)


def other_dates(line: str, _: int) -> str:
    return re.sub(r"\b20\d\d-\d\d-(\d\d)\b", r"2031-05-\1", line)


def other_ranks(line: str, _: int) -> str:
    return RANK.sub(lambda match: match[1] + str(int(match[2]) + RANK_SHIFT), line)


def kubernetes(line: str, _: int) -> str:
    return f"[pod/train-worker-3/pytorch] {line}"


def cri(line: str, index: int) -> str:
    return f"2031-05-03T04:05:{index % 60:02d}.123456789Z stderr F {line}"


def syslog(line: str, index: int) -> str:
    return f"May  3 04:05:{index % 60:02d} node-17 python[4711]: {line}"


def journald(line: str, index: int) -> str:
    return f"2031-05-03T04:05:{index % 60:02d}+0000 node-17 train[99]: {line}"


def coloured(line: str, _: int) -> str:
    return f"\x1b[36m{line}\x1b[0m\r"


def interleaved(lines: Sequence[str]) -> tuple[list[str], dict[int, int]]:
    """Between any two lines one of another, harmless rank; the lines themselves get a rank where they have none."""
    changed: list[str] = []
    numbers: dict[int, int] = {}
    has_ranks = any(re.match(r"\s*\d+: |\[rank", line) for line in lines)
    for index, line in enumerate(lines):
        numbers[index + 1] = len(changed) + 1
        changed += [line if has_ranks else f"[rank5]: {line}", f"[rank901]: {NOISE[index % len(NOISE)]}"]
    return changed, numbers


def head_cut(lines: Sequence[str]) -> tuple[list[str], dict[int, int]]:
    """The log begins in the middle of a harmless line."""
    return ["er.data:prefetched 64 batches", *lines], {number: number + 1 for number in range(1, len(lines) + 1)}


CHANGES: dict[str, Change] = {
    "hosts": each_line(other_hosts),
    "dates": each_line(other_dates),
    "ranks": each_line(other_ranks),
    "kubernetes": each_line(kubernetes),
    "cri": each_line(cri),
    "syslog": each_line(syslog),
    "journald": each_line(journald),
    "colours, CRLF": each_line(coloured),
    "interleaved": interleaved,
    "head cut": head_cut,
}


# --- gpualert-eval ---------------------------------------------------------------------------------------------------


def gpualert_class(log: JobLog) -> str:
    verdict = log.verdict
    if verdict.failure is None or verdict.primary is None:
        return "none"
    kind = verdict.primary.first.exception.split(".")[-1]
    by_class: dict[str, str] = words()["gpualert"]
    by_kind: dict[str, str] = words()["gpualert_exception"]
    name = by_class.get(verdict.failure.name) or by_kind.get(kind) or "runtime_error"
    # Theirs is named by the exception where the text is no CUDA error of the runtime.
    return (
        "runtime_error"
        if verdict.failure.name == "gpu_architecture" and "CUDA error:" not in verdict.primary.first.text
        else name
    )


def score_gpualert(folder: Path) -> Score:
    rows = list(jsonl(folder / "gpualert-eval/job_logs.jsonl"))
    truth = [row["label"] for row in rows]
    said = [gpualert_class(read(row["log"].splitlines())) for row in rows]
    changed_right = changed_total = 0
    for change in CHANGES.values():
        for row in rows:
            changed_total += 1
            changed_right += gpualert_class(read(change(row["log"].splitlines())[0])) == row["label"]
    return Score(
        right=sum(one == other for one, other in zip(truth, said, strict=True)),
        total=len(rows),
        wrong=[f"{r['id']}: expected {t}, said {s}" for r, t, s in zip(rows, truth, said, strict=True) if t != s],
        measure=macro_f1(truth, said),
        changed=(changed_right, changed_total),
    )


def macro_f1(truth: Sequence[str], said: Sequence[str]) -> float:
    """Mean over the classes that occur in the truth."""
    scores = []
    for name in sorted(set(truth)):
        hit = sum(t == s == name for t, s in zip(truth, said, strict=True))
        scores.append(2 * hit / (truth.count(name) + said.count(name)))
    return sum(scores) / len(scores)


# --- NVRx ------------------------------------------------------------------------------------------------------------


def nvrx_classes(group: StatementGroup | None) -> set[str]:
    """What NVRx may call a statement: its classes, and the two that only tell its form."""
    if group is None:
        return set()
    first = group.first
    found = set(words()["nvrx"].get(of_exit_code(first).failure.name, ()))
    return found | ({"observed_exception"} if first.form is Form.EXCEPTION else {"observed_failure"})


def score_lines(folder: Path) -> Score:
    """One expected class of one line each; a line must not match where the table says so."""
    right = total = changed_right = changed_total = 0
    wrong = []
    for name in LINE_TABLES:
        for row in tsv(folder / name):
            wanted = re.split(r"[|,]", row.get("failure_class") or row["classes"])
            must = row["must_match"] == "1"

            def is_right(line: str, wanted: list[str] = wanted, must: bool = must) -> bool:
                found = nvrx_classes(read([line]).verdict.primary)
                return set(wanted) <= found if must else not set(wanted) & found

            total += 1
            if is_right(row["line"]):
                right += 1
            else:
                wrong.append(f"{name}: {row['line']!r}: expected {wanted} {must}")
            for change in CHANGES.values():
                changed_total += 1
                text, numbers = change([row["line"]])
                changed_right += is_right(text[numbers[1] - 1])
    return Score(right=right, total=total, wrong=wrong, changed=(changed_right, changed_total))


def score_cases(folder: Path) -> Score:
    """Every label of every case is a row: a line number, a class, a count."""
    right = total = changed_right = changed_total = 0
    wrong = []
    for case, lines, labels in cases(folder):
        said = answers(read(lines), labels)
        for name, expected in labels.items():
            total += 1
            if agrees(name, expected, said[name]):
                right += 1
            else:
                wrong.append(f"{case}: {name}: expected {expected}, said {said[name]}")
        for title, change in CHANGES.items():
            text, numbers = change(lines)
            moved = {name: move(title, name, value, numbers) for name, value in labels.items()}
            said = answers(read(text), moved)
            for name, expected in moved.items():
                changed_total += 1
                is_right = agrees(name, expected, said[name])
                changed_right += is_right
                if not is_right and agrees(name, labels[name], answers(read(lines), labels)[name]):
                    wrong.append(f"{case} ({title}): {name}: expected {expected}, said {said[name]}")
    return Score(right=right, total=total, wrong=wrong, changed=(changed_right, changed_total))


def cases(folder: Path) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    for name in CASES:
        for row in jsonl(folder / name):
            if "lines" in row:
                yield row["case"], row["lines"], dict(row["expected"])
                continue
            for index, lines in enumerate(row["logs"]):
                labels = dict(row["labels"]) if index == 0 else {}
                labels |= of_expectations(row["expected"], index, len(row["logs"]))
                yield f"{row['id']}/{index}", lines, labels


#: Expectations of NVRx's own objects that say something about the log and not about its objects.
EXPECTATIONS: dict[tuple[str, str], str] = {
    ("bundle.failure_episodes", "truthy"): "has_episode",
    ("bundle.deterministic_primary_candidate", "is not"): "has_primary",
    ("primary", "is not"): "has_primary",
    ("bundle.progress.highest_completed_step", "=="): "last_step",
    ("bundle.progress.last_checkpoint_step", "=="): "checkpoint_step",
    ("bundle.run_progress_summary.first_iteration", "=="): "first_step",
    ("bundle.run_progress_summary.last_iteration", "=="): "last_step",
    ("bundle.run_progress_summary.total_iterations", "=="): "total_steps",
    ("bundle.deterministic_primary_candidate.line", "=="): "primary_line",
    ("bundle.deterministic_primary_candidate.failure_class", "=="): "primary_class",
    ("bundle.failure_episodes[0].terminal_exception_line", "=="): "episode_terminal_line",
    ("len(bundle.failure_episodes)", "=="): "n_episodes",
    ("episode.exception_rank", "=="): "exception_rank",
    ("episode.exception_node", "=="): "exception_node",
    ("episode.exception_gpu", "=="): "exception_gpu",
    ("episode.terminal_exception_line", "=="): "episode_terminal_line",
    ("episode.status", "=="): "episode_status",
    ("incident.event_count", "=="): "incident_events",
    ("len(bundle.distributed_failure_incidents)", "=="): "n_incidents",
    ("[incident.member_event_lines for incident in bundle.distributed_failure_incidents]", "=="): "incident_lines",
    ("incident.operation_types", "=="): "incident_operations",
    ("incident.observed_rank_count", "=="): "incident_ranks",
    ("progress.training_progress", "=="): "training_progress",
    ("bundle.failure_episodes[0].precursor_lines", "=="): "precursor_lines",
    ("bundle.failure_episodes[0].identity_anchor_line", "=="): "identity_line",
    ("bundle.failure_episodes[0].wrapper_exception_lines", "=="): "wrapper_lines",
    ("bundle.failure_episodes[0].last_progress_before", "is"): "step_before",
    ("bundle.deterministic_primary_candidate.causal_role", "=="): "causal_role",
    ("episode.last_progress_before.value", "=="): "step_before",
    ("episode.first_progress_after", "is"): "step_after",
    ("episode.first_progress_after.value", "=="): "step_after",
    ("episode.first_scheduler_cancel_line", "=="): "first_scheduler_cancel_line",
    ("episode.first_teardown_line", "is"): "first_teardown_line",
    ("episode.first_teardown_line", "=="): "first_teardown_line",
    ("episode.first_process_termination_line", "is"): "first_process_termination_line",
    ("episode.first_process_termination_line", "=="): "first_process_termination_line",
    ("anchor.prior_observed_progress_line", "=="): "progress_line",
}


def of_expectations(expected: Sequence[dict[str, Any]], index: int, logs: int) -> dict[str, Any]:
    if logs > 1 and index:
        return {}
    found: dict[str, Any] = {}
    for each in expected:
        name = EXPECTATIONS.get((each["subject"], each["op"]))
        if name is not None:
            found[name] = True if name.startswith("has_") else each["value"]
        elif (each["subject"], each["op"], each["value"]) == ("bundle.failure_episodes", "==", []):
            found["n_episodes"] = 0
    return found


def answers(log: JobLog, labels: dict[str, Any]) -> dict[str, Any]:
    verdict = log.verdict
    failed = failures(log.episodes)
    episode = failed[-1] if failed else None
    end = terminal(episode) if episode is not None else None
    primary = verdict.primary
    before = precursors(episode) if episode is not None else []
    wave = log.waves[0] if log.waves else None
    all_answers: dict[str, Any] = {
        "has_episode": bool(failed),
        "has_primary": primary is not None,
        "n_episodes": len(failed),
        "n_failure_episodes": len(failed),
        "primary_line": primary and primary.first.line.number,
        "primary_class": nvrx_classes(primary),
        "causal_role": "initiating" if verdict.is_cause else "cascade",
        "precursor_lines": [group.first.line.number for group in before],
        "identity_line": before[0].first.line.number if before else end and end.first.line.number,
        "episode_status": status_of(failed),
        "episode_terminal_line": end and end.first.line.number,
        "terminal_exception_line": end and end.first.line.number,
        "first_process_termination_line": line_of(episode, is_process_end),
        "first_scheduler_cancel_line": line_of(episode, lambda g: g.first.failure.name == "cancelled"),
        "first_teardown_line": line_of(episode, is_teardown),
        "step_before": episode and episode.before and episode.before.step,
        "step_after": episode and episode.after and episode.after.step,
        "progress_line": episode and episode.before and episode.before.number,
        "duplicate_lines": duplicates(end),
        "wrapper_lines": wrappers(episode),
        "n_incidents": len(log.waves),
        "incident_ranks": wave and len(wave.ranks),
        "incident_events": wave and wave.count,
        "incident_lines": [each.lines for each in log.waves],
        "incident_operations": wave and sorted(wave.operations),
        "last_step": log.last_progress and log.last_progress.step,
        "first_step": log.first_progress and log.first_progress.step,
        "total_steps": log.last_progress and log.last_progress.total,
        "checkpoint_step": log.last_checkpoint and log.last_checkpoint.step,
        "exception_rank": end and end.first.line.rank,
        "exception_node": end and end.first.line.node,
        "exception_gpu": end and end.first.device,
        "training_progress": "observed" if log.last_progress else "unknown",
    }
    return {name: all_answers.get(name) for name in labels}


def status_of(failed: Sequence[Episode]) -> str | None:
    return failed[-1].status.value if failed else None


def is_process_end(group: StatementGroup) -> bool:
    return group.first.failure.name in ("process_killed", "segmentation_fault", "bus_error", "native_crash")


def is_teardown(group: StatementGroup) -> bool:
    return group.first.role is LineRole.TEARDOWN and group.first.failure.name != "cancelled"


def line_of(episode: Episode | None, is_it: Callable[[StatementGroup], bool]) -> int | None:
    found = [group.first.line.number for group in (episode.groups if episode else ()) if is_it(group)]
    return min(found, default=None)


def duplicates(end: StatementGroup | None) -> list[int]:
    return [] if end is None else [number for _, number in end.lines if number != end.first.line.number]


def wrappers(episode: Episode | None) -> list[int]:
    """Exceptions that report another's failure, or that are raised while processes are taken down."""
    found = [
        group
        for group in (episode.groups if episode else ())
        if group.first.form is Form.EXCEPTION and (group.first.wraps or group.first.role is LineRole.TEARDOWN)
    ]
    return sorted(number for group in found for _, number in group.lines)


def agrees(name: str, expected: Any, said: Any) -> bool:
    if name == "primary_class":
        return expected in said
    return expected == said or (name in ("exception_rank", "exception_gpu") and str(expected) == str(said))


def move(title: str, name: str, value: Any, numbers: dict[int, int]) -> Any:
    """A label after a change: line numbers move with their lines, ranks and hosts are what they were changed to."""
    if title == "ranks" and name == "exception_rank":
        return int(value) + RANK_SHIFT
    if title == "hosts" and name == "exception_node":
        return other_hosts(value, 0)
    if name.endswith("_line"):
        return None if value is None else numbers[value]
    if name.endswith("_lines"):
        return [[numbers[n] for n in each] if isinstance(each, list) else numbers[each] for each in value]
    return value


# --- tables without logs ---------------------------------------------------------------------------------------------


def score_categories(folder: Path) -> Score:
    """RESTART or STOP of each category, from the class of ours that is meant; EXCLUDE is no decision."""
    rows = [row for row in tsv(folder / "nvrx/categories.tsv") if row["decision"] != "EXCLUDE"]
    wrong = []
    total = 0
    for row in rows:
        name = words()["nvrx_category"].get(row["id"])
        if name is None:
            continue
        total += 1
        restart = failure_classes()[name].restart
        said = {Restart.YES: "RESTART", Restart.NO: "STOP", Restart.UNKNOWN: "RESTART"}[restart]
        if said != row["decision"]:
            wrong.append(f"{row['id']} {row['category']}: expected {row['decision']}, {name} says {restart.value}")
    return Score(right=total - len(wrong), total=total, wrong=wrong)


def score_kcover(folder: Path) -> Score:
    """Each substring, alone and inside a line of a container's log, must be seen as what it stands for."""
    wrong = []
    rows = [row["substring"] for row in tsv(folder / "kcover/container_log_patterns.tsv")]
    changed = 0
    for text in rows:
        wanted = words()["kcover"].get(text)
        found = read([f"RuntimeError: {text}" if ":" not in text.split(" ")[0] else text]).verdict.failure
        if found is None or (wanted is not None and found.name not in wanted):
            wrong.append(f"{text}: {found and found.name}")
        changed += sum(read(change([text])[0]).verdict.failure is not None for change in CHANGES.values())
    return Score(
        right=len(rows) - len(wrong), total=len(rows), wrong=wrong, changed=(changed, len(rows) * len(CHANGES))
    )


def score_issues(folder: Path) -> Score:
    """Rank of watchdog lines, and that a flushed queue pair is never the root."""
    wrong = []
    rows = [row for row in jsonl(folder / "issues/format_variants.jsonl") if row["group"] in ("watchdog", "net_ib")]
    for row in rows:
        primary = read([row["line"]]).verdict.primary
        expect = row["expect"]
        if primary is None:
            wrong.append(f"{row['line']}: nothing")
        elif "rank" in expect and primary.first.line.rank != expect["rank"]:
            wrong.append(f"{row['line']}: rank {primary.first.line.rank}")
        elif expect.get("class_", "").startswith("cascade") != (primary.first.role is LineRole.CASCADE):
            wrong.append(f"{row['line']}: role {primary.first.role.value}")
    return Score(right=len(rows) - len(wrong), total=len(rows), wrong=wrong)


def jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def tsv(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


SCORERS: list[Scorer] = [
    Scorer(
        name="job logs",
        files=["gpualert-eval/job_logs.jsonl"],
        ask="macro-F1 >= 0.97",
        bar=0.97,
        score=score_gpualert,
    ),
    Scorer(name="job log cases", files=list(CASES), ask="labels >= 97 %", bar=0.97, score=score_cases),
    Scorer(name="job log lines", files=list(LINE_TABLES), ask="lines >= 99 %", bar=0.99, score=score_lines),
    Scorer(
        name="restart or stop",
        files=["nvrx/categories.tsv"],
        ask="decisions >= 95 %",
        bar=0.95,
        score=score_categories,
    ),
    Scorer(
        name="container log words",
        files=["kcover/container_log_patterns.tsv"],
        ask="words >= 99 %",
        bar=0.99,
        score=score_kcover,
    ),
    Scorer(
        name="watchdog lines",
        files=["issues/format_variants.jsonl"],
        ask="lines >= 99 %",
        bar=0.99,
        score=score_issues,
    ),
]
UNSCORED = {
    "nvrx/fault_restart_table.tsv": "decisions by injected fault, without the log that it leaves",
}
