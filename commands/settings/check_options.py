"""What can be set for ``whichrank check``: how to reach Kafka, where its results are told, and a site's own checks."""

from __future__ import annotations

from pydantic import Field

from .kafka_options import KafkaOptions

#: Of the keys of two commands.
SITE_CHECKS = "file (TOML) with a site's own checks: [[check]] name, command, period_s, timeout_s, domain, device_kind"
#: What the agent runs while no job is here; what it says goes by the agent, and not twice.
IDLE_CHECK = ("check", "--mode", "epilog", "--json", "--set", "kafka=", "--set", "site_checks=")


class CheckOptions(KafkaOptions):
    """``whichrank check``."""

    site_checks: str = Field("", description=SITE_CHECKS)
    check_tell_s: float = Field(5.0, ge=0.5, le=60.0, description="so long a check's results may take to Kafka")
