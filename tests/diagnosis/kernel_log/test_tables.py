"""The data files: complete, one owner each, every word of a closed set, every rule reachable and linear."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.diagnosis.kernel_log.cases import cases
from whichrank.diagnosis.kernel_log import nvlink5
from whichrank.diagnosis.kernel_log.device import canonical_gpu, canonical_pci, pci_slot
from whichrank.diagnosis.kernel_log.line_folding import HEXADECIMAL, Fold, folded
from whichrank.diagnosis.kernel_log.line_scan import LEAST, LONG
from whichrank.diagnosis.kernel_log.recurrence import parameters
from whichrank.diagnosis.kernel_log.rules import LineRule, event_rules, line_rules
from whichrank.diagnosis.kernel_log.xid import sxid_policies, xid_policies


def test_every_xid_has_one_policy() -> None:
    policies = xid_policies()
    assert list(policies) == [str(code) for code in range(1, 174)]
    assert all(policy.meaning and policy.mnemonic for policy in policies.values())
    assert all(set(policy.follows or ()) <= set(policies) for policy in policies.values())


def test_applications_and_hardware_are_told_apart() -> None:
    domains = {code: policy.domain.value for code, policy in xid_policies().items()}
    assert {domains[code] for code in ("13", "31", "43", "45")} == {"application"}
    assert {domains[code] for code in ("48", "63", "64", "74", "79", "92", "94", "95", "119", "149")} == {"hardware"}


def test_sxids_and_nvlink_units_are_there() -> None:
    assert len(sxid_policies()) == 92
    assert {row.xid for row in nvlink5.table()} == set(nvlink5.CODES)


def test_each_row_of_nvlink5_says_one_thing() -> None:
    keys = [(row.xid, row.unit_v1, row.unit_v2, row.reason, row.status) for row in nvlink5.table()]
    assert len(set(keys)) == len(keys)


def test_a_recovery_names_an_event_that_there_is() -> None:
    assert {rule.after for rule in event_rules().values()} - {""} <= set(event_rules())


def test_no_two_events_have_one_name_with_others() -> None:
    names = [name for rule in event_rules().values() for name in rule.also]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == {"OOM", "OOMKilling", "IOError"}  # which others do not tell apart


@pytest.mark.parametrize("rule", line_rules(), ids=lambda rule: f"{rule.rule.event}-{rule.order}")
def test_a_rule_is_bounded(rule: LineRule) -> None:
    assert all(len(word.encode().translate(None, HEXADECIMAL)) >= LEAST for word in rule.needs)
    # Unbounded repeats of wide classes are what makes a search quadratic.
    assert not re.search(r"(?:\.|\\S)[*+]", rule.pattern.pattern)


@pytest.mark.parametrize("rule", line_rules(), ids=lambda rule: f"{rule.rule.event}-{rule.order}")
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_rule_matches_has_one_of_the_words_it_needs_and_is_matched_folded(
    rule: LineRule, data: st.DataObject
) -> None:
    """Else lines that it is for would never reach it, or not after others of their kind that said nothing."""
    text = data.draw(st.from_regex(re.compile(rule.pattern.pattern, re.ASCII)))
    assert any(word in text for word in rule.needs)
    for fold in Fold:
        if text.isascii() and rule.within.search(text):
            assert rule.within_folded(fold).search(folded(text.encode(), fold).decode())


def test_the_worst_line_for_each_rule_is_read_in_no_time() -> None:
    """A line of nothing but beginnings of a match, as long as lines may be: for each rule of every 32nd case."""
    slowest = 0.0
    for number, rule in enumerate(line_rules()):
        for case in cases()[number % 32 :: 32]:
            line = (case.line[: len(case.line) * 2 // 3] * 200)[:16_384]
            began = time.process_time()
            rule.pattern.search(line)
            slowest = max(slowest, time.process_time() - began)
            for fold in Fold:
                kind = folded(line.encode(), fold).decode()[:LONG]
                began = time.process_time()
                rule.within_folded(fold).search(kind)
                slowest = max(slowest, time.process_time() - began)
    assert slowest < 0.5


def test_every_event_but_those_of_several_lines_has_a_case() -> None:
    told = {case.event for case in cases()}
    untold = {word for word in event_rules() if word not in told}
    assert untold == {"nic_link_up", "nic_link_stays_down", "lustre_connection_restored", "mlx5_napi_soft_lockup"}


def test_rules_of_repeats_have_names_of_their_own() -> None:
    names = [rule.name for rule in parameters().rules]
    assert len(set(names)) == len(names)
    assert all(bit < 32 for rule in parameters().rules for bit in rule.bits)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("PCI:0000:B3:00", "0000:b3:00"),
        ("00000000:b3:00.0", "0000:b3:00.0"),
        ("b3:00.1", "0000:b3:00.1"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0009:01:00", "0009:01:00"),
        ("no-address", None),
        ("0000:b3:00.9", None),
    ],
)
def test_canonical_addresses(text: str, canonical: str | None) -> None:
    assert canonical_pci(text) == canonical


def test_one_board_has_one_slot() -> None:
    assert pci_slot("0000:b3:00.0") == pci_slot("0000:b3:00") == "0000:b3:00"
    assert pci_slot("store-7.cluster") == "store-7.cluster"
    assert canonical_gpu("gpu-0A1B2C3D-1111-2222-3333-444455556666") == "GPU-0a1b2c3d-1111-2222-3333-444455556666"
