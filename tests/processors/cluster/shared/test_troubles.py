"""An incident in the few words by which it is compared with others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.processors.endings import raised_fact, row_of
from whichrank.processors.cluster.shared.troubles import Trouble, trouble_of
from whichrank.processors.told_finding import read_told
from whichrank.telemetry.evidence_facts import EvidenceFact, How, SignalSender
from whichrank.telemetry.incident_reading import read_incident


def ended(*facts: EvidenceFact, signal: str = "rank.exception") -> Trouble:
    single: dict[str, Any] = {
        "id": "i", "kind": "rank_raised", "bucket": "immediate_crash", "severity": "page", "scope": "rank",
        "job": {"id": "j", "attempt": "a", "run": "r"}, "times": {"onset": 1.0}, "suspects": [],
        "evidence": [row_of(signal, "rank", 1.0, fact) for fact in facts],
    }  # fmt: skip
    return trouble_of(read_incident(single), read_told(single), 1.0, None)


def test_the_words_are_those_of_the_error_in_whatever_order_its_rows_come() -> None:
    first = raised_fact("socket.gaierror: temporary failure in name resolution", rank=15, file="train.py", line=22)
    count = EvidenceFact(how=How.RAISED, ranks="3-12", type="socket.gaierror")
    assert ended(first, count).words == ended(count, first).words
    assert "temporary failure" in ended(count, first).words[1]


def test_other_ranks_and_numbers_are_the_same_error() -> None:
    one, other = (raised_fact(f"OSError: [Errno {rank}]", rank=rank, file=f"{rank}.py", line=rank) for rank in (3, 4))
    assert ended(one).words == ended(other).words


@pytest.mark.parametrize(
    ("fact", "error", "said"),
    [
        (EvidenceFact(how=How.ABORTED, rank=1, signal=6, sender=SignalSender.ITSELF), "sigabrt by itself", ""),
        (EvidenceFact(how=How.SIGNAL, rank=1, signal=9, step=3, phase="restore"), "sigkill in restore", ""),
        (EvidenceFact(how=How.VICTIMS, endings=(raised_fact("OSError: x 1", rank=0),)), "oserror: x #", "oserror: x #"),
        (EvidenceFact(how=How.VICTIMS), "victims", ""),
    ],
)
def test_what_we_say_of_an_end_is_nothing_that_a_rule_looks_for(fact: EvidenceFact, error: str, said: str) -> None:
    trouble = ended(fact, signal="rank.exit")
    assert (trouble.error, trouble.said) == (error, said)
    assert fact.how is not None
    assert fact.how.value in trouble.hows


def test_a_row_of_a_release_before_facts_compares_with_today_s() -> None:
    told = ended(EvidenceFact(how=How.ABORTED, rank=1, signal=6, sender=SignalSender.ITSELF, step=2, phase="forward"))
    row = json.loads(told.pack())
    row |= {"error": "aborted itself (sigabrt) in step #, phase forward, before ranks #-# failed"}
    del row["said"], row["hows"]
    known = Trouble.unpack(json.dumps(row).encode())
    assert known.words == told.words
    assert known.hows == ["aborted"]
