"""A site's own checks, as the file that it has written lists them: each a program, with its own limit."""

from __future__ import annotations

import time

from ...agents.collectors.checks.site_programs import run_site_check
from ...diagnosis.health_checks.outcome import CheckStatus
from ...diagnosis.health_checks.site_checks import BadSiteChecks, read_site_checks
from .check_setup import Setup, Tell
from .finding import CheckFinding, Family


def check(setup: Setup, tell: Tell) -> None:
    """Runs the site's programs one after the other, as long as there is time; tells what each of them says."""
    try:
        checks = read_site_checks(setup.site_checks)
    except BadSiteChecks as error:
        tell.found(CheckFinding(family=Family.SITE, check="file", status=CheckStatus.UNKNOWN, reason=str(error)))
        return
    until_s = time.monotonic() + setup.limit_s - 0.5
    for each in checks:
        tell.begins(f"{each.name} was run")
        left_s = until_s - time.monotonic()
        if left_s < 0.5:
            reason = "no time was left for it"
            tell.found(CheckFinding(family=Family.SITE, check=each.name, status=CheckStatus.UNKNOWN, reason=reason))
            continue
        for found in run_site_check(each, left_s):
            tell.found(
                CheckFinding(
                    family=Family.SITE,
                    check=found.check,
                    status=found.status,
                    reason=found.reason,
                    device=found.device,
                    remedy=found.remedy,
                    domain=found.domain,
                    device_kind=found.device_kind,
                    action=found.action.value if found.action is not None else "",
                )
            )
