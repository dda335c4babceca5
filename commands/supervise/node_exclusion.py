"""The same command without one node, where its launcher allows that and the job keeps its size. Pure but for hostfiles.

torchrun with a range (``--nnodes MIN:MAX``) goes on with those that come. ``srun`` takes ``--exclude``, as long as the
allocation has nodes to spare. What names its hosts (``mpirun``, ``deepspeed``, ``accelerate``) gets a spare one in the
place of the bad one: in a copy of the hostfile, never in the owner's. Fewer hosts than before is nothing that anybody
has asked for, so without a spare these cannot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from ..support.node_names import is_node_name
from .srun_options import srun_without

#: Options by which launchers are told of a file with hosts, and of hosts.
_FILES = frozenset({"--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f", "-H", "--deepspeed_hostfile"})
_LISTS = frozenset({"-H", "-host", "--host", "--hosts", "-hosts"})
_FILE_OF = {
    "mpirun": _FILES - {"-H"},
    "mpiexec": _FILES - {"-H"},
    "mpiexec.hydra": _FILES - {"-H"},
    "horovodrun": _FILES - {"-H", "-f"},
    "deepspeed": frozenset({"--hostfile", "-H"}),
    "accelerate": frozenset({"--deepspeed_hostfile"}),
}
_MOST_HOSTFILE_BYTES = 1 << 20
#: The name of a host at the beginning of a line of a hostfile, or of a word of a list.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: Restarts by itself, and leaves out nodes by Slurm's state and its own list.
RESTARTING_LAUNCHERS = frozenset({"ft_launcher"})
_RESTARTING_MODULE = "nvidia_resiliency_ext.fault_tolerance.launcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """command: to be started; () where the node cannot be left out. how: in words, or why not. spare: taken for it."""

    command: tuple[str, ...]
    how: str
    spare: str = ""


def restarts_by_itself(command: Sequence[str]) -> str:
    """The launcher in this command that restarts jobs by itself, so that nobody else must; "" there is none."""
    for index, word in enumerate(command):
        name = PurePath(word).name
        if name in RESTARTING_LAUNCHERS:
            return name
        if word == "-m" and index + 1 < len(command) and command[index + 1] == _RESTARTING_MODULE:
            return "ft_launcher"
    return ""


def without_node(
    command: Sequence[str], node: str, spares: Sequence[str], folder: Path, *, allocated: int = 0
) -> Exclusion:
    """The command without ``node``. spares: nodes that nobody uses, in order. folder: for copies of hostfiles.
    allocated: nodes of the Slurm job; 0 is not known.

    Never raises for what a hostfile holds; a copy that cannot be written is told in ``how``.
    """
    if not is_node_name(node):
        return Exclusion(command=(), how=f"{node[:80]!r} is no name of one node")
    for index, word in enumerate(command):
        name = PurePath(word).name
        if name == "srun":
            words, why_not = srun_without(command, index, node, allocated)
            return Exclusion(command=words, how=why_not or f"srun {words[index + 1]}")
        if name in _FILE_OF:
            return _with_spare(command, index, name, node, [spare for spare in spares if spare != node], folder)
        is_module = word == "-m" and tuple(command[index + 1 : index + 2]) == ("torch.distributed.run",)
        if name == "torchrun" or is_module:
            return _elastic(command, index, node)
    return Exclusion(command=(), how="its launcher is none that whichrank knows how to tell")


def _elastic(command: Sequence[str], start: int, node: str) -> Exclusion:
    nodes = _option(command, start, ("--nnodes",))
    least, colon, most = nodes.partition(":")
    if colon and least.isdigit() and most.isdigit() and int(least) < int(most):
        return Exclusion(command=tuple(command), how=f"torchrun --nnodes={nodes} goes on without {node}")
    return Exclusion(command=(), how=f"torchrun --nnodes={nodes or 1} wants all of them; --nnodes=MIN:MAX would not")


def _option(command: Sequence[str], start: int, names: Sequence[str]) -> str:
    for index in range(start, len(command)):
        name, given, value = command[index].partition("=")
        if name in names:
            return value if given else "".join(command[index + 1 : index + 2])
    return ""


def _with_spare(
    command: Sequence[str], start: int, launcher: str, node: str, spares: Sequence[str], folder: Path
) -> Exclusion:
    """The command with a spare node in the place of a bad one, in a list of hosts or a copy of its hostfile."""
    if not spares:
        return Exclusion(command=(), how=f"{launcher} needs as many nodes as before, and --spares names none")
    for index in range(start + 1, len(command)):
        option, given, value = command[index].partition("=")
        if not given:
            value = "".join(command[index + 1 : index + 2])
        place = index if given else index + 1
        if option in _FILE_OF[launcher]:
            text = _read(value)
            changed = _replaced(text, node, spares)
            if changed is None:
                return Exclusion(command=(), how=f"{value} names no {node}, or every spare already")
            new_text, spare = changed
            copy = folder / f"hostfile-without-{node}"
            try:
                copy.write_text(new_text)
            except OSError as error:
                return Exclusion(command=(), how=f"{copy}: {error.strerror}")
            return _exchanged(command, place, option if given else "", str(copy), launcher, node, spare)
        if launcher not in ("deepspeed", "accelerate") and option in _LISTS:
            changed = _replaced(value.replace(",", "\n"), node, spares)
            if changed is not None:
                hosts = changed[0].replace("\n", ",")
                return _exchanged(command, place, option if given else "", hosts, launcher, node, changed[1])
    return Exclusion(command=(), how=f"{launcher} is given no hosts in which {node} could be exchanged")


def _exchanged(
    command: Sequence[str], place: int, option: str, value: str, launcher: str, node: str, spare: str
) -> Exclusion:
    words = list(command)
    words[place] = f"{option}={value}" if option else value
    return Exclusion(command=tuple(words), how=f"{launcher} with {spare} in the place of {node}", spare=spare)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_HOSTFILE_BYTES)
    except OSError:
        return ""


def _replaced(text: str, node: str, spares: Sequence[str]) -> tuple[str, str] | None:
    """Lines with a spare host in the place of ``node``, and which; None: it is not there, or no spare is free."""
    lines = text.split("\n")
    hosts = [found.group() if (found := _HOST.match(line.strip())) else "" for line in lines]
    free = [spare for spare in spares if spare not in hosts and is_node_name(spare)]
    if node not in hosts or not free:
        return None
    spare = free[0]
    return "\n".join(
        line.replace(node, spare, 1) if host == node else line for line, host in zip(lines, hosts, strict=True)
    ), spare
