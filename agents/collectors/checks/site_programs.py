"""Runs a site's own checks, each for its own time at most: what it prints, and how it ends, is what it says."""

from __future__ import annotations

import subprocess

from ....diagnosis.health_checks.outcome import CheckStatus
from ....diagnosis.health_checks.site_checks import SiteCheck
from ...base.bounded_command import run_bounded
from .check_results import SITE_SOURCE, CheckResult, read_site_answer


def run_site_check(check: SiteCheck, limit_s: float | None = None) -> list[CheckResult]:
    """Runs the program; what it says. One that cannot be run or does not end in time could not see anything."""
    try:
        status, said, _ = run_bounded(check.command, min(check.timeout_s, limit_s or check.timeout_s))
    except subprocess.TimeoutExpired:
        return [_unknown(check, f"did not end within {check.timeout_s:g} s, and was killed")]
    except (OSError, ValueError) as error:
        return [_unknown(check, f"cannot be run: {error}")]
    return read_site_answer(check.name, status, said, domain=check.domain, device_kind=check.device_kind)


def _unknown(check: SiteCheck, why: str) -> CheckResult:
    return CheckResult(family=SITE_SOURCE, check=check.name, status=CheckStatus.UNKNOWN, reason=f"{check.name} {why}")
