"""How a check went, and what outweighs what."""

from __future__ import annotations

from whichrank.diagnosis.health_checks.outcome import EXIT_CODES, CheckOutcome, CheckStatus, outcome, worst

OK, WARN, CRITICAL, UNKNOWN = CheckStatus.OK, CheckStatus.WARN, CheckStatus.CRITICAL, CheckStatus.UNKNOWN


def test_what_outweighs_what() -> None:
    assert worst([OK, UNKNOWN]) is UNKNOWN
    assert worst([UNKNOWN, WARN]) is WARN
    assert worst([CRITICAL, WARN, UNKNOWN]) is CRITICAL
    assert worst([]) is UNKNOWN
    assert sorted(EXIT_CODES.values()) == [0, 1, 2, 3]
    assert outcome("x", [], "fine") == CheckOutcome(check="x", status=OK, reasons=("fine",))
