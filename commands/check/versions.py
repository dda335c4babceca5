"""What is installed: against the patterns that are expected, and firmware of the same adapters against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from ...agents.collectors.network.sysfs_ports import infiniband_ports
from ...agents.collectors.surroundings.versions_collector import VersionsCollector
from ...diagnosis.health_checks.outcome import CheckStatus
from .check_setup import Setup, Tell
from .finding import CheckFinding, Family
from .points import moment

#: A node shows some dozen; jobs that run on it more.
_MOST_TOLD = 40


def check(setup: Setup, tell: Tell) -> None:
    """Tells what is installed, and whether it fits the expected patterns; firmware of the same adapters must agree."""
    tell.begins("versions were read from /proc, /sys and /etc")
    collected = VersionsCollector(proc=setup.proc, sys=setup.sys, etc=setup.etc).collect(moment())
    found: dict[str, dict[str, str]] = {}
    for happening in collected.happenings:
        facts = happening.attributes
        found.setdefault(str(facts["what"]), {})[str(facts["where"])] = str(facts["new"])
    wanted = setup.expected.versions
    for what, pattern in wanted.items():
        tell.found(*_against(what, pattern, found.get(what, {})))
    tell.found(*_firmware(setup))
    told = "; ".join(f"{what} {' '.join(sorted(set(by.values())))}" for what, by in list(found.items())[:_MOST_TOLD])
    tell.found(
        _finding("installed", CheckStatus.OK if found else CheckStatus.UNKNOWN, told or "no version can be read")
    )


def _against(what: str, pattern: str, by_place: Mapping[str, str]) -> Iterator[CheckFinding]:
    remedy = "bring the node to the image that its jobs were built for, or correct the expectation"
    if not by_place:
        reason = f"{what}: it is not here, expected {pattern}"
        yield _finding("version", CheckStatus.CRITICAL, reason, device=what, remedy=remedy)
    for place, version in by_place.items():
        if fnmatchcase(version, pattern):
            yield _finding("version", CheckStatus.OK, f"{what} {version}", device=place or what)
        else:
            reason = f"{what} {version}, expected {pattern}"
            yield _finding("version", CheckStatus.CRITICAL, reason, device=place or what, remedy=remedy)


def _firmware(setup: Setup) -> Iterator[CheckFinding]:
    """Adapters of one board that do not run the same firmware."""
    by_board: dict[str, dict[str, str]] = {}
    for port in infiniband_ports(setup.sys):
        if port.board and port.firmware:
            by_board.setdefault(port.board, {})[port.id.partition("/")[0]] = port.firmware
    for board, by_device in by_board.items():
        counts = Counter(by_device.values())
        usual = counts.most_common(1)[0][0]
        for device, firmware in by_device.items():
            if firmware != usual:
                yield _finding(
                    "firmware",
                    CheckStatus.WARN,
                    f"firmware {firmware}, {usual} on {counts[usual]} others of board {board}",
                    device=device,
                    remedy="bring all adapters of the node to one firmware (mlxfwmanager)",
                )


def _finding(check: str, status: CheckStatus, reason: str, *, device: str = "", remedy: str = "") -> CheckFinding:
    return CheckFinding(family=Family.VERSIONS, check=check, status=status, reason=reason, device=device, remedy=remedy)
