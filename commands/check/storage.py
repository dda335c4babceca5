"""Mounts: those that must be there, whether each answers, takes a file where one is to be written, and has room."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from ...agents.collectors.base.kernel_files import read_text
from ...agents.collectors.storage.mount_probes import MountProbe, ProbeResult, Space
from ...agents.collectors.storage.mount_table import Mount, mount_of, parse_mounts
from ...diagnosis.health_checks.outcome import CheckStatus
from .check_setup import Setup, Tell
from .finding import CheckFinding, Family

_TABLE_BYTES = 4 << 20
_LOOK_S = 0.02
_CLIENT = "look at the server and the client's lines in the kernel log; unmount with umount -f -l, mount it again"
#: What a write may be told without the mount being ill: nobody may write there.
_DENIED = frozenset({"EACCES", "EPERM"})


def check(setup: Setup, tell: Tell) -> None:
    """Tells whether each expected mount is there, answers in time, and has room.

    It must also take a file where one is to be written.
    """
    tell.begins("the table of mounts was read")
    table = read_text(setup.proc / "self/mountinfo", _TABLE_BYTES)
    if table is None:
        reason = f"{setup.proc}/self/mountinfo cannot be read: mounts are not seen"
        tell.found(_finding("mounts", CheckStatus.UNKNOWN, reason))
        return
    mounts = parse_mounts(table)
    wanted = setup.expected.storage
    tell.found(*_missing(table, wanted.mounts))
    write, homeless = _write_folders(wanted.write, mounts)
    tell.found(*homeless)
    probes = {mount.path: MountProbe(mount.path, write.get(mount.path, "")) for mount in mounts}
    # A second folder on one mount is asked by a probe of its own.
    others = [(folder, found) for folder in wanted.write if (found := mount_of(folder, mounts)) is not None]
    for folder, mount in others:
        if write.get(mount.path) != folder:
            probes[folder] = MountProbe(mount.path, folder)
    by_path = {mount.path: mount for mount in mounts} | dict(others)
    tell.begins("the mounts were asked", CheckStatus.CRITICAL)
    for probe in probes.values():
        probe.ask()
    patience_s = max(min(wanted.answer_s, setup.limit_s - 1.0), 0.2)
    until_s = time.monotonic() + patience_s
    open_probes = dict(probes)
    answered = 0
    while open_probes and time.monotonic() < until_s:
        for path, probe in list(open_probes.items()):
            result = probe.take() if not probe.is_busy else None
            if result is not None:
                del open_probes[path]
                answered += 1
                tell.found(*_answered(setup, by_path[path], path, probe, result))
        time.sleep(_LOOK_S)
    for path, probe in open_probes.items():
        tell.found(_silent(by_path[path], path, probe, patience_s))
    if not open_probes:
        tell.found(_finding("answer", CheckStatus.OK, f"{len(probes)} mounts answer", value=float(answered)))


def _missing(table: str, wanted: tuple[str, ...]) -> Iterator[CheckFinding]:
    """By the table alone: of what kind a mount is does not matter."""
    have = {fields[4] for line in table.splitlines() if len(fields := line.split(" ")) > 4}
    for path in wanted:
        if os.path.normpath(path).replace(" ", "\\040") not in have:
            remedy = f"mount {path}; look at systemctl --failed and the kernel log if it refuses"
            yield _finding("mounts", CheckStatus.CRITICAL, "it is not mounted", device=path, remedy=remedy)
    if wanted:
        missing = sum(os.path.normpath(path).replace(" ", "\\040") not in have for path in wanted)
        if not missing:
            yield _finding("mounts", CheckStatus.OK, f"{len(wanted)} folders are mounted")


def _write_folders(wanted: tuple[str, ...], mounts: list[Mount]) -> tuple[dict[str, str], list[CheckFinding]]:
    """Mount -> the first folder on it in which a file is written; and what lies on no mount that is storage."""
    folders: dict[str, str] = {}
    homeless = []
    for folder in wanted:
        mount = mount_of(folder, mounts)
        if mount is None:
            reason = "it lies on no disk and no server, so nothing is written there"
            remedy = "name a folder on the file system that jobs write to"
            homeless.append(_finding("write", CheckStatus.UNKNOWN, reason, device=folder, remedy=remedy))
        else:
            folders.setdefault(mount.path, folder)
    return folders, homeless


def _answered(setup: Setup, mount: Mount, path: str, probe: MountProbe, result: ProbeResult) -> Iterator[CheckFinding]:
    for operation in result.operations:
        took_s = operation.took_ns / 1e9
        if operation.error:
            device = probe.write_folder if operation.operation == "write" else path
            denied = operation.error in _DENIED and operation.operation != "write"
            status = CheckStatus.OK if denied else CheckStatus.CRITICAL
            reason = f"{operation.operation}: {operation.error} after {took_s:.2f} s ({_what(mount)})"
            yield _finding(operation.operation, status, reason, device=device, remedy="" if denied else _CLIENT)
        elif took_s > setup.expected.storage.answer_s / 3:
            reason = f"{operation.operation} took {took_s:.1f} s ({_what(mount)})"
            yield _finding("slow", CheckStatus.WARN, reason, device=path, remedy=_CLIENT, value=took_s)
        elif operation.operation == "write":
            reason = f"a file was written and synced in {took_s * 1000:.0f} ms"
            yield _finding("write", CheckStatus.OK, reason, device=probe.write_folder, value=took_s)
    if result.space is not None and path == mount.path:
        yield from _room(setup, mount, result.space)


def _room(setup: Setup, mount: Mount, space: Space) -> Iterator[CheckFinding]:
    wanted = setup.expected.storage
    usable = space.total_bytes - space.free_bytes + space.available_bytes
    for what, used, whole in (
        ("space", usable - space.available_bytes, usable),
        ("inodes", space.inodes - space.free_inodes, space.inodes),
    ):
        percent = 100.0 * used / whole if whole > 0 else 0.0
        if mount.read_only or percent <= wanted.used_percent_warn:
            continue  # an image is full by its nature
        critical = percent > wanted.used_percent_critical
        yield _finding(
            what,
            CheckStatus.CRITICAL if critical else CheckStatus.WARN,
            f"{percent:.0f} % of its {what} in use ({_what(mount)})",
            device=mount.path,
            remedy="remove old checkpoints, logs and core dumps, or ask for more",
            value=percent,
        )


def _silent(mount: Mount, path: str, probe: MountProbe, patience_s: float) -> CheckFinding:
    outstanding = probe.outstanding
    doing = outstanding.operation if outstanding is not None else "stat"
    reason = f"no answer to {doing} within {patience_s:.1f} s ({_what(mount)})"
    return _finding(
        "answer", CheckStatus.CRITICAL, reason, device=probe.write_folder if doing == "write" else path, remedy=_CLIENT
    )


def _what(mount: Mount) -> str:
    return f"{mount.fstype} of {mount.server}" if mount.server else mount.fstype


def _finding(
    check: str, status: CheckStatus, reason: str, *, device: str = "", remedy: str = "", value: float | None = None
) -> CheckFinding:
    return CheckFinding(
        family=Family.STORAGE, check=check, status=status, reason=reason, device=device, remedy=remedy, value=value
    )
