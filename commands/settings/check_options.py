"""What can be set for ``whichrank check``: how to reach Kafka, where its results are told, and a site's own checks."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from .file_trust import who_else_decides
from .kafka_options import KafkaOptions

#: Of the keys of two commands.
SITE_CHECKS = "file (TOML) with a site's own checks: [[check]] name, command, period_s, timeout_s, domain, device_kind"
#: What the agent runs while no job is here; what it says goes by the agent, and not twice.
IDLE_CHECK = ("check", "--mode", "epilog", "--json", "--set", "kafka=", "--set", "site_checks=")


class CheckOptions(KafkaOptions):
    """``whichrank check``."""

    site_checks: str = Field("", description=SITE_CHECKS)
    check_tell_s: float = Field(5.0, ge=0.5, le=60.0, description="so long a check's results may take to Kafka")


def what_is_wrong_with(site_checks: str) -> str:
    """Why no programs are run from this file; "" they are, or none is named. One line with a remedy."""
    if not site_checks:
        return ""
    path = Path(site_checks)
    if not path.is_absolute():
        return f"site_checks {site_checks}: give the whole path, from / on"
    try:
        return who_else_decides(path, path.stat()) or ""
    except OSError as error:
        return f"site_checks {site_checks}: {error.strerror or error}"
