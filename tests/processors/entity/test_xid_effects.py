"""What an Xid means for jobs is said once, in xid.tsv: by the kernel's log and by the driver alike."""

from __future__ import annotations

import pytest

from whichrank.diagnosis.job_log.taxonomy import failure_classes
from whichrank.diagnosis.kernel_log.xid import xid_policies, xids_of_effect
from whichrank.processors.entity.rules import load_rules
from whichrank.telemetry.vocabulary import EventName, Kind, Scope

STOPS, NUMBERS, SLOW = Kind.COLLECTIVE_STALLED, Kind.NUMERIC_ALL, Kind.RANK_SLOW
EXPLAINS = {
    "program": {Kind.RANK_RAISED},
    "memory": {STOPS, NUMBERS},
    "system_processor": {STOPS, SLOW},
    "device": {STOPS},
}


@pytest.mark.parametrize("source", [EventName.KERNEL_EVENT, EventName.DEVICE_EVENT])
def test_each_code_means_what_its_row_says(source: EventName) -> None:
    told = {STOPS, NUMBERS, SLOW, Kind.RANK_RAISED}
    for code, policy in xid_policies().items():
        rule = load_rules().of_event(source, "xid", code, policy.domain.value, "error")
        assert rule is not None
        found = rule.effect.explains & told
        assert found >= EXPLAINS[policy.effect], code
        assert not (EXPLAINS["memory"] | EXPLAINS["system_processor"]) - EXPLAINS[policy.effect] & found, code
        assert rule.effect.scope is (Scope.APPLICATION if policy.effect == "program" else Scope.GPU)


def test_what_the_program_did_is_of_its_domain() -> None:
    """A line may name another domain than the table (NVLink 5): so the domain decides."""
    for policy in xid_policies().values():
        assert (policy.effect == "program") == (policy.domain.value == "application"), policy.code


def test_each_class_is_one_of_a_job() -> None:
    assert {policy.failure_class for policy in xid_policies().values()} <= set(failure_classes())


def test_an_effect_that_no_code_has_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no Xid has the effect 'memroy'; xid.tsv has device, memory"):
        xids_of_effect("memroy")
