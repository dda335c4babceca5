"""Each alert fires for its fault, stays quiet for the others, and resolves: in the engine of a real Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stack.alert_faults import HEALTHY, Fault, faults
from tests.stack.parts.placing import REPOSITORY
from tests.stack.parts.promtool import Expected, told_otherwise
from whichrank.grafana.rules import RULES

RULE_FILE = REPOSITORY / "deploy" / "prometheus" / "rules.yml"


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name.replace(" ", "-"))
def test_its_alert_and_no_other(fault: Fault, tmp_path: Path) -> None:
    assert not told_otherwise(RULE_FILE, fault.all_series, fault.expected(), tmp_path)


def test_what_is_healthy_alerts_nobody(tmp_path: Path) -> None:
    quiet = [Expected(at_s=at_s, alert=rule.title) for rule in RULES for at_s in range(0, 1700, 100)]
    assert not told_otherwise(RULE_FILE, HEALTHY, quiet, tmp_path)


def test_a_fault_that_is_not_there_is_missed(tmp_path: Path) -> None:
    """The tests above would see it if an alert did not come."""
    fault = faults()[0]
    assert "exp" in told_otherwise(RULE_FILE, HEALTHY, fault.expected(), tmp_path)


def test_every_rule_has_its_fault() -> None:
    assert {fault.alert for fault in faults()} == {rule.title for rule in RULES}
