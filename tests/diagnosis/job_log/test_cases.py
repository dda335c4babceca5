"""Whole logs and single lines in the shapes of the field: what they died of, whose line tells it, what only follows.

``cases.toml`` and ``holdout.tsv`` are read as they are and after mechanical changes, which must change nothing.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whichrank.diagnosis.job_log.job_log_reader import JobLog, LogSource, read_job_logs, whose
from whichrank.diagnosis.job_log.log_verdict import failures, restart_word
from whichrank.diagnosis.job_log.model import EpisodeStatus, LineRole, Restart
from whichrank.telemetry.vocabulary import Action, Bucket

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

HERE = Path(__file__).parent
CASES: list[dict[str, Any]] = tomllib.loads((HERE / "cases.toml").read_text())["case"]
#: Lines of the hold-out that may come out wrong; it was written before the rules, and is not tuned to.
MAY_MISS = 4


def read(text: str | bytes, name: str = "log") -> JobLog:
    raw = text.encode() if isinstance(text, str) else text
    return read_job_logs([LogSource(name=name, file=io.BytesIO(raw))])


def holdout() -> list[dict[str, str]]:
    with (HERE / "holdout.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_case_is_read_as_a_person_would(case: dict[str, Any]) -> None:
    verdict = read(case["log"].lstrip("\n")).verdict
    assert (verdict.failure.name if verdict.failure else "") == case["class"]
    if not case["class"]:
        return
    assert verdict.primary is not None
    first = verdict.primary.first
    assert first.line.number in case.get("line_any", [case["line"]])
    assert verdict.is_cause is case.get("cause", True)
    if "rank" in case:
        assert first.line.rank == case["rank"]
    if "ranks" in case:
        assert len(verdict.primary.ranks) == case["ranks"]
    if "where" in case:
        assert first.where is not None
        assert f"{first.where.file}:{first.where.line}" == case["where"]
    assert 0 < verdict.confidence <= 1


CHANGES: dict[str, Callable[[str], str]] = {
    "kubectl": lambda line: f"[pod/train-2/main] {line}",
    "cri": lambda line: f"2031-05-03T04:05:06.123456789Z stderr F {line}",
    "syslog": lambda line: f"May  3 04:05:06 node-17 python[4711]: {line}",
    "journald": lambda line: f"2031-05-03T04:05:06+0000 node-17 python[4711]: {line}",
    "docker compose": lambda line: f"worker-1  | {line}",
    "coloured": lambda line: f"\x1b[31m{line}\x1b[0m",
    "crlf": lambda line: line + "\r",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("case", [case for case in CASES if "\r" not in case["log"]], ids=lambda case: case["name"])
def test_carriers_change_nothing(case: dict[str, Any], change: str) -> None:
    lines = case["log"].lstrip("\n").splitlines()
    plain = read("\n".join(lines) + "\n").verdict
    changed = read("\n".join(CHANGES[change](line) for line in lines) + "\n").verdict
    assert (changed.failure and changed.failure.name) == (plain.failure and plain.failure.name)
    if plain.primary is not None and changed.primary is not None:
        assert changed.primary.first.line.number == plain.primary.first.line.number


def test_the_hold_out_holds() -> None:
    wrong = []
    rows = holdout()
    for row in rows:
        verdict = read(row["line"] + "\n").verdict
        said = verdict.failure.name if verdict.failure else "-"
        role = verdict.primary.first.role if verdict.primary else None
        said_role = "-" if role is None else "initiating" if role is LineRole.CONFIRMATION else role.value
        if (said, said_role) != (row["class"], row["role"]):
            wrong.append(f"{row['class']} {row['role']}, said {said} {said_role}: {row['line']}")
    assert len(rows) >= 150
    assert len(wrong) <= MAY_MISS, "\n".join(wrong)


def test_tracebacks_of_many_ranks_may_lie_between_each_other() -> None:
    tracebacks = {
        rank: [
            f"[rank{rank}]: Traceback (most recent call last):",
            f'[rank{rank}]:   File "/w/train.py", line {10 + rank}, in step',
            f"[rank{rank}]:     loss = f(batch[{rank}])",
            f"[rank{rank}]: ValueError: batch {rank} has no labels"
            if rank == 4
            else f"[rank{rank}]: BrokenPipeError: gone",
        ]
        for rank in range(8)
    }
    woven = "\n".join(tracebacks[rank][row] for row in range(4) for rank in range(8)) + "\n"
    verdict = read(woven).verdict
    assert verdict.primary is not None
    assert (verdict.primary.first.line.rank, verdict.primary.first.line.number) == (4, 29)
    assert verdict.primary.first.where is not None
    assert verdict.primary.first.where.line == 14
    assert {rank for group in verdict.consequences for rank in group.ranks} == {0, 1, 2, 3, 5, 6, 7}


def test_files_are_ranks_beside_each_other_in_time() -> None:
    healthy = "\n".join(f"step {n} loss 2.0" for n in range(50)) + "\nConnectionResetError: [Errno 104] reset\n"
    guilty = "step 49 loss 2.0\nKeyError: 'labels'\n"
    sources = [
        LogSource(name=name, file=io.BytesIO(text.encode()), rank=whose(name)[0])
        for name, text in (("out/rank_0.log", healthy), ("out/rank_1.log", guilty))
    ]
    found = read_job_logs(sources)
    assert found.verdict.primary is not None
    assert found.verdict.primary.first.line.rank == 1
    assert [episode.status for episode in failures(found.episodes)] == [EpisodeStatus.TERMINAL]


@pytest.mark.parametrize(
    ("name", "rank", "node"),
    [
        ("logs/rank_12.log", 12, None),
        ("attempt_0/3/stderr.log", 3, None),
        ("node-07.out", None, "node-07"),
        ("slurm-1234_5.out", 5, None),
        ("train.log", None, None),
    ],
)
def test_names_of_files_tell_whose_they_are(name: str, rank: int | None, node: str | None) -> None:
    assert whose(name) == (rank, node)


def test_a_cascade_never_displaces_an_earlier_cause() -> None:
    verdict = read(
        "[rank3]: RuntimeError: expected scalar type Half but found Float\n"
        + "".join(f"[rank{r}]: RuntimeError: Connection closed by peer [10.0.0.{r}]:1\n" for r in range(200) if r != 3)
    ).verdict
    assert verdict.failure is not None
    assert verdict.failure.name == "dtype_mismatch"
    lost = [group for group in verdict.consequences if group.first.failure.name == "peer_lost"]
    assert [len(group.ranks) for group in lost] == [199]


def test_progress_afterwards_is_said_but_proves_nothing() -> None:
    found = read("step 1 loss 2\nRuntimeError: a sample was odd\nstep 2 loss 2\n")
    assert [episode.status for episode in found.episodes] == [EpisodeStatus.PROGRESSED_AFTER]
    assert any("does not prove" in warning for warning in found.verdict.warnings)
    assert found.verdict.confidence < 0.7


def test_user_buffers_come_with_a_warning_about_numbers() -> None:
    verdict = read("UB TIMEOUT: rank 5 waiting for peer 3 in userbuffers\n").verdict
    assert any("do not trust numbers" in warning for warning in verdict.warnings)


def test_advice_is_of_the_one_vocabulary() -> None:
    verdict = read("kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n").verdict
    assert verdict.failure is not None
    assert verdict.failure.action is Action.RESTART_WITHOUT_NODE
    assert verdict.failure.bucket is Bucket.IMMEDIATE_CRASH
    assert restart_word(verdict) is Restart.YES
    assert verdict.primary is not None
    assert verdict.primary.first.device == "0000:3b:00"


def test_an_empty_log_is_no_verdict() -> None:
    for text in ("", "\n\n", "step 1 loss 2.0\n"):
        verdict = read(text).verdict
        assert verdict.failure is None
        assert verdict.confidence == 0


def test_waves_of_timeouts_are_one_standstill() -> None:
    line = (
        "[rank{r}]:[E224 19:0{m}:00.0 ProcessGroupNCCL.cpp:697] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=2, OpType=ALLGATHER, NumelIn=1, Timeout(ms)={t}) ran for {t} milliseconds before timing out.\n"
    )
    found = read("".join(line.format(r=r, m=r % 4, t=600000) for r in range(20)) + line.format(r=3, m=3, t=1000))
    assert [(len(wave.ranks), wave.operations) for wave in found.waves] == [(20, {"allgather"}), (1, {"allgather"})]
    assert re.search("collective did not end", found.verdict.why)
