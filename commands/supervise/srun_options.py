"""``srun`` without one node of its allocation, by its own options. Pure.

Found out on a real Slurm: without ``--nodes`` or ``--ntasks`` it wants all nodes of the allocation, and then
``--exclude`` is an error; of several ``--exclude`` the last one holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...diagnosis.hostlist import HostlistError, expand_hostlist

#: Options that take no word of their own behind them (srun's manual page, 22.05); all others do, unless by "=".
_ALONE = frozenset(
    {
        *("bcast", "compress", "contiguous", "disable-status", "exact", "exclusive", "help", "hold", "immediate"),
        *("kill-on-bad-exit", "label", "multi-prog", "nice", "no-allocate", "no-kill", "overcommit", "overlap"),
        *("oversubscribe", "preserve-env", "propagate", "pty", "quiet", "quit-on-interrupt", "reboot", "resv-ports"),
        *("send-libs", "spread-job", "test-only", "unbuffered", "usage", "use-min-nodes", "verbose", "version", "x11"),
    }
)
_ALONE_LETTERS = frozenset("EHIKOQVXZhklsuv")
_NAMES = {"N": "nodes", "n": "ntasks", "x": "exclude", "w": "nodelist", "F": "nodefile"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SrunOption:
    """first, end: its words among the command's, from the first to before the end."""

    name: str
    value: str
    first: int
    end: int


def options_of(command: Sequence[str], start: int) -> list[SrunOption]:
    """The options of the ``srun`` at this place, up to the program that it starts; short names as long ones."""
    found: list[SrunOption] = []
    place = start + 1
    while place < len(command) and command[place].startswith("-") and command[place] != "--":
        name, value, is_whole = _read(command[place])
        end = place + 1 if is_whole else min(place + 2, len(command))
        if not is_whole:
            value = "".join(command[place + 1 : end])
        found.append(SrunOption(name=name, value=value, first=place, end=end))
        place = end
    return found


def _read(word: str) -> tuple[str, str, bool]:
    """Name, value, and whether the value is not the next word."""
    if word.startswith("--"):
        name, given, value = word[2:].partition("=")
        return name, value, bool(given) or name in _ALONE
    letters = word[1:].lstrip("".join(_ALONE_LETTERS))  # several may stand together, the last with a value
    if not letters:
        return "", "", True
    return _NAMES.get(letters[0], letters[0]), letters[1:], len(letters) > 1


def srun_without(command: Sequence[str], start: int, node: str, allocated: int) -> tuple[tuple[str, ...], str]:
    """The command with the node excluded and "", or () and why that cannot be.

    allocated: nodes of the job; 0 is not known.
    """
    options = options_of(command, start)
    known = {option.name: option for option in options}
    if "nodes" not in known and "ntasks" not in known:
        return (), "srun without --nodes takes all nodes of its allocation: none is to spare"
    if "nodefile" in known or ("nodelist" in known and _may_name(known["nodelist"].value, node)):
        return (), f"srun --nodelist asks for {node}"
    before = known["exclude"].value if "exclude" in known else ""
    if "/" in before:
        return (), "srun --exclude names a file"
    wanted = known["nodes"].value.partition("-")[0] if "nodes" in known else ""
    out = {node, *_expanded(before)}
    if allocated and wanted.isdigit() and int(wanted) > allocated - len(out):
        return (), f"srun wants {wanted} of {allocated} nodes, and {len(out)} are left out"
    dropped = {place for option in options if option.name == "exclude" for place in range(option.first, option.end)}
    kept = [word for place, word in enumerate(command) if place not in dropped]
    kept.insert(start + 1, f"--exclude={before},{node}" if before else f"--exclude={node}")
    return tuple(kept), ""


def _may_name(hostlist: str, node: str) -> bool:
    try:
        return node in expand_hostlist(hostlist)
    except HostlistError:
        return True


def _expanded(hostlist: str) -> Sequence[str]:
    try:
        return expand_hostlist(hostlist) if hostlist else ()
    except HostlistError:
        return (hostlist,)
