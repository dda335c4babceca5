"""Where the nodes of a job meet, as the command line, its environment and the scheduler say. Pure.

Understands torchrun (and ``python -m torch.distributed.run``) with its ``PET_*`` variables, ``accelerate launch``, a
Slurm step of several tasks, and ranks that a job controller started by hand (RANK, WORLD_SIZE, MASTER_ADDR). Anything
else is one machine as far as can be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ...telemetry.whole_numbers import whole_number
from ..support.addresses import split_address

DEFAULT_C10D_PORT = 29400
DEFAULT_STATIC_PORT = 29500
#: torchrun's options that take no value; every other takes one.
_TORCHRUN_FLAGS = frozenset({"standalone", "module", "m", "no-python", "run-path", "use-env", "help", "h"})
_TORCHRUN_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})
_ACCELERATE_FLAGS = frozenset({"multi-gpu", "cpu", "module", "m", "no-python", "use-fsdp", "use-deepspeed", "quiet"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """One address that all nodes of a job know.

    id: what tells two jobs at one address apart. places: how many commands take part, at most.
    place: this one's number, -1 where the launcher does not fix it. source: who said so, in words.
    """

    host: str
    port: int
    id: str
    places: int
    place: int
    source: str


def find_rendezvous(command: Sequence[str], environ: Mapping[str, str]) -> Rendezvous | None:
    """Where the nodes of a job meet, by its command line and environment.

    None: it is one command on one machine, or nothing says otherwise.
    """
    start = _after_torchrun(command)
    if start:
        options = _options(command[start:], _TORCHRUN_FLAGS)
        return _torchrun(options, environ, "torchrun")
    start = _after_accelerate(command)
    if start:
        return _accelerate(_options(command[start:], _ACCELERATE_FLAGS))
    if environ.get("PET_NNODES"):  # torchrun somewhere inside a script
        found = _torchrun({}, environ, "PET_NNODES")
        if found is not None:
            return found
    return _slurm_step(environ) or _ranks_by_hand(environ)


def first_node(nodes: str) -> str:
    """The first name of a Slurm node list: ``rack[2-3]n[08,10-12],login`` -> ``rack2n08``."""
    name, depth, inside = "", 0, ""
    for letter in nodes.strip():
        if letter == "[":
            depth, inside = 1, ""
        elif letter == "]":
            depth = 0
            name += inside.split(",")[0].split("-")[0]
        elif depth:
            inside += letter
        elif letter == ",":
            break
        else:
            name += letter
    return name


def _after_torchrun(command: Sequence[str]) -> int:
    """Index of the first word after the launcher, 0 if it is none."""
    for index, word in enumerate(command):
        if PurePath(word).name == "torchrun":
            return index + 1
        if word == "-m" and index + 1 < len(command) and command[index + 1] in _TORCHRUN_MODULES:
            return index + 2
    return 0


def _after_accelerate(command: Sequence[str]) -> int:
    for index, word in enumerate(command[:-1]):
        if PurePath(word).name == "accelerate" and command[index + 1] == "launch":
            return index + 2
        if word == "-m" and command[index + 1] == "accelerate.commands.launch":
            return index + 2
    return 0


def _options(words: Sequence[str], flags: frozenset[str]) -> dict[str, str]:
    """Options up to the script; the script's own are none of ours. ``--rdzv_id`` and ``--rdzv-id`` are one."""
    options: dict[str, str] = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        name, given, value = words[index].partition("=")
        name = name.lstrip("-").replace("_", "-")
        index += 1
        if not given:
            value = "1"
            if name not in flags:
                value = words[index] if index < len(words) else ""
                index += 1
        options[name] = value
    return options


def _torchrun(options: Mapping[str, str], environ: Mapping[str, str], source: str) -> Rendezvous | None:
    def option(name: str, default: str = "") -> str:
        return options.get(name) or environ.get("PET_" + name.replace("-", "_").upper()) or default

    places = _number(option("nnodes", "1").rpartition(":")[2])
    if option("standalone") not in ("", "0", "False", "false") or places < 2:
        return None
    backend = option("rdzv-backend", "static")
    endpoint = option("rdzv-endpoint")
    if endpoint:
        said = f"{source} --rdzv-endpoint"
    else:
        endpoint, said = f"{option('master-addr', '127.0.0.1')}:{option('master-port')}", f"{source} --master-addr"
    try:
        host, port = split_address(
            endpoint.removesuffix(":"), DEFAULT_STATIC_PORT if backend == "static" else DEFAULT_C10D_PORT
        )
    except ValueError:
        return None
    # Only the static rendezvous keeps to --node-rank; others give the places out as nodes come.
    place = _number(option("node-rank", "0")) if backend == "static" else -1
    return Rendezvous(host=host, port=port, id=option("rdzv-id", "none"), places=places, place=place, source=said)


def _accelerate(options: Mapping[str, str]) -> Rendezvous | None:
    places = _number(options.get("num-machines", "1"))
    host = options.get("main-process-ip", "")
    if places < 2 or not host:
        return None
    return Rendezvous(
        host=host,
        port=_number(options.get("main-process-port", "")) or DEFAULT_STATIC_PORT,
        id="accelerate",
        places=places,
        place=_number(options.get("machine-rank", "0")),
        source="accelerate --main_process_ip",
    )


def _slurm_step(environ: Mapping[str, str]) -> Rendezvous | None:
    """Tasks of one srun. In a batch script itself there is one command only, however many nodes it was given."""
    places, step = _number(environ.get("SLURM_STEP_NUM_TASKS", "")), environ.get("SLURM_STEP_ID", "")
    place = environ.get("SLURM_PROCID", "")
    if places < 2 or not step or whole_number(place) is None:
        return None
    host, source = environ.get("MASTER_ADDR", ""), "srun, MASTER_ADDR"
    if not host:
        host, source = first_node(environ.get("SLURM_STEP_NODELIST", "")), "srun, first of SLURM_STEP_NODELIST"
    if not host:
        return None
    job = environ.get("SLURM_JOB_ID", "")
    port = _number(environ.get("MASTER_PORT", "")) or DEFAULT_STATIC_PORT
    return Rendezvous(host=host, port=port, id=f"{job}.{step}", places=places, place=int(place), source=source)


def _ranks_by_hand(environ: Mapping[str, str]) -> Rendezvous | None:
    """A job controller that starts one command per rank. Below a launcher these variables are the launcher's."""
    host, rank = environ.get("MASTER_ADDR", ""), environ.get("RANK", "")
    places = _number(environ.get("WORLD_SIZE", ""))
    if not host or whole_number(rank) is None or places < 2 or environ.get("TORCHELASTIC_RUN_ID"):
        return None
    port = _number(environ.get("MASTER_PORT", "")) or DEFAULT_STATIC_PORT
    return Rendezvous(
        host=host, port=port, id="env", places=places, place=int(rank), source="RANK, WORLD_SIZE and MASTER_ADDR"
    )


def _number(text: str) -> int:
    return whole_number(text) or 0
