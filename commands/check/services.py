"""Services and kernel modules: those that are named, and those without which this kind of node does not work."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatchcase

from ...agents.collectors.base.kernel_files import list_names, read_text
from ...diagnosis.health_checks.outcome import CheckStatus
from .check_setup import Setup, Tell
from .finding import CheckFinding, Family
from .gpu_inventory import inventory

_ANSWER_S = 3.0
#: Starting is not failing.
_GOOD = frozenset({"active", "reloading"})
_FABRIC_MANAGER = "nvidia-fabricmanager"
#: The kernel keeps 15 characters of a program's name.
_NAME_CHARACTERS = 15
_PROGRAMS = {_FABRIC_MANAGER: "nv-fabricmanager"}


def check(setup: Setup, tell: Tell) -> None:
    """Tells whether named units and modules run, and the fabric manager where there are NVSwitches."""
    here = inventory(setup.root)
    units = list(setup.expected.services.units)
    if here.nvswitches and here.on_bus and not here.is_restricted and _FABRIC_MANAGER not in units:
        units.append(_FABRIC_MANAGER)
    tell.begins("the services were asked for")
    tell.found(*(_service(setup, unit) for unit in units))
    tell.found(*_modules(setup))
    if not units and not setup.expected.services.modules:
        tell.found(_finding("services", CheckStatus.OK, "no service is expected by name or by the kind of this node"))


def _service(setup: Setup, unit: str) -> CheckFinding:
    state = _state(unit) if str(setup.root) == "/" else None
    if state is None:
        program = _PROGRAMS.get(unit, unit.removesuffix(".service"))
        state = "active" if _runs(setup, program) else "not running"
    if state in _GOOD:
        return _finding("service", CheckStatus.OK, f"it is {state}", device=unit)
    status = CheckStatus.WARN if state == "activating" else CheckStatus.CRITICAL
    remedy = f"systemctl status {unit}; journalctl -u {unit} -n 50"
    return _finding("service", status, f"it is {state}", device=unit, remedy=remedy)


def _state(unit: str) -> str | None:
    """systemd's word. None: there is no systemd, or it does not answer."""
    program = shutil.which("systemctl")
    if program is None:
        return None
    try:
        shown = subprocess.run(
            [program, "is-active", "--", unit], capture_output=True, timeout=_ANSWER_S, check=False, text=True
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    word = shown.stdout.strip()
    return word if word and " " not in word and "offline" not in word else None


def _runs(setup: Setup, program: str) -> bool:
    wanted = program[:_NAME_CHARACTERS]
    return any(
        (read_text(setup.proc / pid / "comm") or "") == wanted for pid in list_names(setup.proc) if pid.isdecimal()
    )


def _modules(setup: Setup) -> Iterator[CheckFinding]:
    have = {name.replace("-", "_") for name in list_names(setup.sys / "module")}
    for module in setup.expected.services.modules:
        if any(fnmatchcase(name, module.replace("-", "_")) for name in have):
            yield _finding("module", CheckStatus.OK, "it is loaded", device=module)
        else:
            remedy = f"modprobe {module}; look into the kernel log if it refuses"
            yield _finding("module", CheckStatus.CRITICAL, "it is not loaded", device=module, remedy=remedy)


def _finding(check: str, status: CheckStatus, reason: str, *, device: str = "", remedy: str = "") -> CheckFinding:
    return CheckFinding(family=Family.SERVICES, check=check, status=status, reason=reason, device=device, remedy=remedy)
