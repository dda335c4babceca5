"""What releases before facts have said is read as it stands in their findings, states and documents, word by word."""

from __future__ import annotations

from typing import Any

import pytest

from whichrank.processors.older_sentences import (
    event_of_condition,
    fact_of_row,
    hows_of_trouble,
    key_of_failure,
    key_of_trouble,
    ranks_ruled_out,
)
from whichrank.telemetry.evidence_facts import FACT, EvidenceFact, How, SignalSender, write_fact
from whichrank.telemetry.incident_reading import read_ruled_out

_KILLED = " (it leaves no trace in the process: look for the kernel's out-of-memory killer, a scheduler, a person)"
RAISED = EvidenceFact(how=How.RAISED, rank=3, type="ValueError")
#: Sentences of 0.1.0.dev6 and what they say.
SAID = [
    (
        "rank 3 raised ValueError: bad 17 in /a/b at /x/train.py:88 in step 41, phase forward, before ranks 0-2 failed",
        EvidenceFact(
            how=How.RAISED, rank=3, type="ValueError", message="bad 17 in /a/b", file="/x/train.py", line=88, step=41,
            phase="forward",
        ),
    ),
    ("rank 3 raised ValueError", RAISED),
    (
        "a thread of rank 1 raised KeyError at t.py:3",
        EvidenceFact(how=How.RAISED, rank=1, type="KeyError", in_thread=True, file="t.py", line=3),
    ),
    (
        "rank 3 was ended by SIGKILL in step 4, phase data" + _KILLED + ", before rank 1 failed",
        EvidenceFact(how=How.SIGNAL, rank=3, signal=9, step=4, phase="data"),
    ),
    (
        "rank 1 was ended by SIGTERM sent by pid 77",
        EvidenceFact(how=How.SIGNAL, rank=1, signal=15, sender=SignalSender.PROCESS, sender_pid=77),
    ),
    (
        "rank 1 was ended by signal 10 sent by the launcher (pid 5) in step 2",
        EvidenceFact(how=How.SIGNAL, rank=1, signal=10, sender=SignalSender.LAUNCHER, sender_pid=5, step=2),
    ),
    ("rank 1 aborted itself (SIGABRT)", EvidenceFact(how=How.ABORTED, rank=1, signal=6, sender=SignalSender.ITSELF)),
    ("rank 1 ended itself (SIGSEGV)", EvidenceFact(how=How.SIGNAL, rank=1, signal=11, sender=SignalSender.ITSELF)),
    ("rank 3 ended with exit code 17, before rank 1 failed", EvidenceFact(how=How.EXIT, rank=3, exit_code=17)),
    ("rank 3 ended without a word (exit code not visible)", EvidenceFact(how=How.VANISHED, rank=3)),
    (
        "rank 3 came to the end of its script and left in step 9, phase exit, while the others still called "
        "collectives with it",
        EvidenceFact(how=How.LEFT, rank=3, step=9, phase="exit"),
    ),
    (
        "all ranks ended together: rank 0 was ended by SIGKILL; rank 3 ended with exit code 9",
        EvidenceFact(
            how=How.TOGETHER,
            endings=(
                EvidenceFact(how=How.SIGNAL, rank=0, signal=9), EvidenceFact(how=How.EXIT, rank=3, exit_code=9)
            ),
        ),
    ),
    ("only victims' errors: rank 3 raised ValueError", EvidenceFact(how=How.VICTIMS, endings=(RAISED,))),
    (
        "ranks 3-12 raised socket.gaierror as well: one cause, seen on 11 ranks",
        EvidenceFact(how=How.RAISED, ranks="3-12", type="socket.gaierror"),
    ),
    (
        "ranks 0-3 found no room: what they share is full, whoever was refused first",
        EvidenceFact(how=How.RAISED, ranks="0-3"),
    ),
    (
        "errors elsewhere only say that a peer went away; ranks 4-7 on n2 were not seen since",
        EvidenceFact(how=How.VICTIMS),
    ),
    ("in words of no release", None),
]  # fmt: skip


@pytest.mark.parametrize(("shows", "fact"), SAID)
def test_a_row_without_a_fact(shows: str, fact: EvidenceFact | None) -> None:
    assert fact_of_row({"signal": "rank.exit", "source": "rank 3", "shows": shows}) == fact
    assert fact_of_row({"signal": "progress", "shows": shows}) is None


def test_a_fact_is_read_before_any_sentence() -> None:
    row = {"signal": "rank.exit", "shows": "rank 3 ended with exit code 17", FACT: write_fact(RAISED)}
    assert fact_of_row(row) == RAISED


@pytest.mark.parametrize(
    ("row", "node"),
    [
        ({"signal": "peer.silent", "source": "node n1"}, "n1"),
        ({"signal": "peer.closed", "source": "node n 2"}, "n 2"),
        ({"signal": "peer.silent", "source": "job j"}, None),
    ],
)
def test_a_silent_node(row: dict[str, Any], node: str | None) -> None:
    fact = fact_of_row(row)
    assert (fact.node if fact is not None else None) == node


@pytest.mark.parametrize(
    ("row", "ranks"),
    [
        ({"who": "rank 3"}, {3}),
        ({"who": "ranks 0-2,5"}, {0, 1, 2, 5}),
        ({"who": "anybody", "ranks": "7"}, {7}),
        ({"who": "rank 3", FACT: {"rank": 4}}, {4}),
        ({"who": "gpu GPU-1 of n1"}, set()),
        ({"who": "same place again step 3 of rank 5"}, set()),
        ({"who": "ranks 1-x", "ranks": "1-x"}, set()),
    ],
)
def test_who_is_ruled_out(row: dict[str, Any], ranks: set[int]) -> None:
    assert ranks_ruled_out(read_ruled_out(row)) == ranks


@pytest.mark.parametrize(
    ("condition", "event"),
    [
        ({"name": "xid_79"}, "xid"),
        ({"name": "xid_79", "event": None}, "xid"),
        ({"name": "xid_79", "event": "xid"}, "xid"),
        ({"name": "mount_stalls", "event": ""}, ""),
    ],
)
def test_which_event_a_condition_is_of(condition: dict[str, Any], event: str) -> None:
    assert event_of_condition(condition) == event


@pytest.mark.parametrize(
    ("kept", "today"),
    [
        ("ValueError: bad # in #", "ValueError: bad # in #"),
        ("SIGKILL", "SIGKILL"),
        ("(SIGABRT)", "SIGABRT by itself"),
        ("exit code 17", "exit code 17"),
        ("a word (exit code not visible)", "vanished"),
        ("SIGKILL; rank # was ended by SIGKILL; rank # ended with exit code 9", "SIGKILL; SIGKILL; exit code 9"),
        ("OSError: no; rank # raised OSError: no", "OSError: no; OSError: no"),
        ("", ""),
    ],
)
def test_errors_that_failures_compare_by(kept: str, today: str) -> None:
    assert key_of_failure(kept) == today
    assert key_of_failure(today) == today


@pytest.mark.parametrize(
    ("kept", "today"),
    [
        ("raised valueerror: bad #", "valueerror: bad #"),
        ("raised a: x | raised a: x", "a: x | a: x"),
        ("was ended by sigkill in step #, phase data" + _KILLED.lower() + ", before rank # failed", "sigkill in data"),
        ("was ended by sigterm sent by the launcher (pid #)", "sigterm by launcher"),
        (
            "was ended by sigterm sent by pid # in step #, phase data, before ranks #-# failed",
            "sigterm by process in data",
        ),
        ("aborted itself (sigabrt)", "sigabrt by itself"),
        ("ended with exit code #, before rank # failed", "exit code #"),
        ("ended without a word (exit code not visible)", "vanished"),
        ("came to the end of its script and left in step #, phase exit, while the others still", "left in exit"),
        ("only victims' errors: rank # raised oserror: x; rank # ended with exit code #", "oserror: x; exit code #"),
        ("errors elsewhere only say that a peer went away; ranks #-# on n# were not seen since", "victims"),
        ("steps.loss", "steps.loss"),
        ("", ""),
    ],
)
def test_errors_that_troubles_compare_by(kept: str, today: str) -> None:
    assert key_of_trouble(kept) == today
    assert key_of_trouble(today) == today


def test_how_troubles_ended() -> None:
    assert hows_of_trouble("aborted itself (sigabrt)") == ["aborted"]
    assert hows_of_trouble("raised runtimeerror: aborted") == []
