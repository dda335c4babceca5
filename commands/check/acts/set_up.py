"""Sets a node up as a file of the site lists it: limits of the kernel, clocks, persistence mode, mounts.

The file is root's (it says what root does); each entry is looked at first, and left alone where it is so already.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ....agents.base.bounded_command import run_bounded
from ...settings.file_trust import who_else_decides
from ...settings.given_file import read_given_file
from .act import NodeAct

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SYSCTL = re.compile(r"[a-z0-9_]+(\.[a-zA-Z0-9_-]+)+")
_LIMIT_S = 8.0
_SECTIONS = ("limits", "clocks", "persistence", "mounts")


class BadSetUp(ValueError):
    """One line: the file, what is wrong in it, and what would be right."""


def read_set_up(path: Path, root: Path = Path("/")) -> list[NodeAct]:
    """The acts that the file asks for. Raises BadSetUp, also where others than root and the caller can change it."""
    try:
        content, state = read_given_file(path)
        wrong = who_else_decides(path, state)
        tables = tomllib.loads(content.decode())
    except OSError as error:
        raise BadSetUp(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSetUp(f"{path}: {error}; see docs/check.md for its keys") from None
    if wrong:
        raise BadSetUp(wrong)
    if unknown := sorted(set(tables) - set(_SECTIONS)):
        raise BadSetUp(f"{path}: {', '.join(unknown)}: no such entry; there are {', '.join(_SECTIONS)}")
    try:
        return [
            *_limits(tables.get("limits", {}), root),
            *_clocks(tables.get("clocks", {}), root),
            *_persistence(tables.get("persistence", False)),
            *_mounts(tables.get("mounts", []), root),
        ]
    except ValueError as error:
        raise BadSetUp(f"{path}: {error}") from None


def _limits(table: Any, root: Path) -> Iterator[NodeAct]:
    """``"fs.file-max" = 2000000``: as sysctl names them."""
    if not isinstance(table, Mapping):
        raise ValueError("[limits] is a table of names as sysctl has them, with values")
    for name, value in table.items():
        if not _SYSCTL.fullmatch(name) or not isinstance(value, int | str) or isinstance(value, bool):
            raise ValueError(f"limits.{name} = {value!r}: a name as vm.max_map_count, with a number or a text")
        file = root / "proc/sys" / name.replace(".", "/")
        yield _file_act("limit", name, file, str(value))


def _clocks(table: Any, root: Path) -> Iterator[NodeAct]:
    """governor of the CPUs; gpu_mhz: [least, most] of the GPUs' clocks."""
    if not isinstance(table, Mapping) or set(table) - {"governor", "gpu_mhz"}:
        raise ValueError("[clocks] has governor and gpu_mhz")
    governor, span = table.get("governor"), table.get("gpu_mhz")
    if governor is not None:
        if not isinstance(governor, str) or not governor.isalpha():
            raise ValueError(f"clocks.governor = {governor!r}: a word as performance")
        for file in sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")):
            yield _file_act("governor", file.parts[-3], file, governor)
    if span is not None:
        if not isinstance(span, list) or len(span) != 2 or not all(isinstance(each, int) for each in span):
            raise ValueError(f"clocks.gpu_mhz = {span!r}: two numbers, the least and the most")
        words = ["nvidia-smi", f"--lock-gpu-clocks={span[0]},{span[1]}"]
        # What is locked cannot be asked for: it is set each time.
        yield NodeAct(
            what="gpu_clocks",
            on="all GPUs",
            text=f"lock the clocks of all GPUs to {span[0]} to {span[1]} MHz",
            is_so=lambda: False,
            do=partial(_run, words),
        )


def _persistence(wanted: Any) -> Iterator[NodeAct]:
    if not isinstance(wanted, bool):
        raise ValueError(f"persistence = {wanted!r}: true or false")
    if wanted:
        asked = ["nvidia-smi", "--query-gpu=persistence_mode", "--format=csv,noheader"]
        yield NodeAct(
            what="persistence",
            on="all GPUs",
            text="turn the persistence mode of all GPUs on",
            is_so=lambda: all(line.strip() == "Enabled" for line in _said(asked).splitlines()),
            do=partial(_run, ["nvidia-smi", "-pm", "1"]),
        )


def _mounts(paths: Any, root: Path) -> Iterator[NodeAct]:
    """As /etc/fstab has them."""
    if not isinstance(paths, list) or not all(isinstance(each, str) and each.startswith("/") for each in paths):
        raise ValueError("mounts is a list of whole paths that stand in /etc/fstab")
    for path in paths:
        yield NodeAct(
            what="mount",
            on=path,
            text=f"mount {path} as /etc/fstab has it",
            is_so=partial(_is_mounted, path, root),
            do=partial(_run, ["mount", "--", path]),
        )


def _file_act(what: str, on: str, file: Path, value: str) -> NodeAct:
    """A file of the kernel's, which holds one value."""

    def is_so() -> bool:
        return file.read_text().split() == value.split()

    def do() -> None:
        file.write_text(value + "\n")
        if not is_so():
            raise OSError(f"it is {file.read_text().strip()} afterwards")

    return NodeAct(what=what, on=on, text=f"set {on} to {value}", is_so=is_so, do=do)


def _is_mounted(path: str, root: Path) -> bool:
    lines = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    wanted = path.rstrip("/").replace(" ", "\\040") or "/"
    return any(line.split(" ", 5)[4] == wanted for line in lines)


def _run(words: Sequence[str]) -> None:
    _said(words)


def _said(words: Sequence[str]) -> str:
    try:
        status, said, complained = run_bounded(words, _LIMIT_S)
    except subprocess.TimeoutExpired:
        raise OSError(f"{words[0]} did not end within {_LIMIT_S:g} s") from None
    if status:
        raise OSError(f"{' '.join(words)}: {(complained or said).decode(errors='replace').strip()[-200:]}")
    return said.decode(errors="replace")
