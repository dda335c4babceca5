"""``whichrank check pairs``: flags, and the exit status. Every rank runs it; the first one speaks."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ...diagnosis.health_checks.outcome import CheckStatus
from ...diagnosis.topology import TopologyError, parse_topology
from ..check.finding import EXIT_USAGE, exit_status
from ..settings.command_line import CONFIG, KAFKA, PAIRS
from ..support.stderr import say

if TYPE_CHECKING:
    from ..settings.check_options import CheckOptions
    from .pair_ranks import PairPlan

_LEAST_S, _MOST_S = 10.0, 24 * 3600.0
_MOST_TOPOLOGY_BYTES = 64 << 20
#: Levels of a topology by which nodes are grouped, the first that all nodes have.
_LEVELS = ("leaf", "rack", "block")


class Backend(str, Enum):
    auto = "auto"
    gloo = "gloo"
    nccl = "nccl"


class LinkChoice(str, Enum):
    met = "met"
    all = "all"


def pairs_command(
    backend: Annotated[Backend, typer.Option(help="of torch.distributed; auto: nccl where there are GPUs")] = (
        Backend.auto
    ),
    size: Annotated[
        int | None, typer.Option(metavar="MIB", min=1, help="of one exchange; default 256 with nccl, 4 with gloo")
    ] = None,
    links: Annotated[
        LinkChoice,
        typer.Option(help="met: links of nodes that meet in the rounds; all: one more round, in which each meets each"),
    ] = LinkChoice.met,
    topology: Annotated[
        Path | None, typer.Option(metavar="FILE", help="each node's leaf or rack, so that a switch's ways out are seen")
    ] = None,
    slower: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", min=1, help="lower than others' bandwidth by more; default 20, with gloo 50"),
    ] = None,
    least: Annotated[float | None, typer.Option(metavar="GB/S", help="less stands out, whatever others have")] = None,
    perftest: Annotated[
        bool, typer.Option("--perftest", help="bandwidth by ib_write_bw, where both ends have it")
    ] = False,
    no_ring: Annotated[bool, typer.Option("--no-ring", help="leave the all-reduce over all out")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="nothing new is measured after it")] = 600.0,
    strict: Annotated[bool, typer.Option("--strict", help="exit status 1 for WARN as well")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
    kafka: Annotated[str | None, KAFKA] = None,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Which of many nodes, rails or links is slow? Pairs exchange data, in rounds.

    Run it as a rank of a job, one per GPU or one per node: torchrun
    --no-python whichrank check pairs, or srun whichrank check pairs. About
    log2 of the nodes in rounds; suspects are asked again. Exit status of the
    first rank: 0 OK or WARN (a link, a switch's ways out); 1 CRITICAL (a node
    or a rail); 2 usage, or the ranks did not meet; 3 nothing could be seen.
    """
    from ..check.check_telling import check_options
    from .pair_ranks import PairPlan

    if not _LEAST_S <= timeout <= _MOST_S:
        _refuse(f"--timeout {timeout:g}: must be {_LEAST_S:g} to {_MOST_S:g} seconds")
    if slower is not None and not slower < 100:
        _refuse(f"--slower {slower:g}: must be below 100 percent")
    options = check_options(kafka, config, pairs)
    size_bytes = size << 20 if size is not None else None
    plan = PairPlan(
        backend=backend.value,
        size_bytes=size_bytes,
        sweep=links is LinkChoice.all,
        ring=not no_ring,
        perftest=perftest,
        places=_places(topology) if topology is not None else None,
        slower_percent=slower,
        least_bytes_per_s=least * 1e9 if least else 0.0,
        timeout_s=timeout,
    )
    _end(_take_part(plan, options, strict=strict, as_json=as_json))


def _take_part(plan: PairPlan, options: CheckOptions, *, strict: bool, as_json: bool) -> int:
    """The exit status of this rank; the one that leads prints and tells the result."""
    from .pair_ranks import CannotMeet, take_part
    from .pair_report import findings_of, print_pairs, status_of
    from .pair_telling import tell_pairs

    try:
        result = take_part(plan)
    except CannotMeet as error:
        _refuse(str(error))
    if result is None:
        return 0
    findings = findings_of(result.outcome, result.nodes, result.groups, result.size_bytes)
    status = status_of(findings, result.outcome)
    code = exit_status(CheckStatus.UNKNOWN if result.outcome.rounds == 0 else status, strict=strict)
    print_pairs(
        result.outcome,
        findings,
        result.nodes,
        rails=result.rails,
        size_bytes=result.size_bytes,
        exit_code=code,
        as_json=as_json,
    )
    tell_pairs(options, findings, result.nodes)
    return code


def _end(code: int) -> NoReturn:
    """At once: threads of torch that wait for a partner that never answers hold up no exit, and abort none."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _places(file: Path) -> dict[str, str]:
    """By node the group that it is of: its leaf, or else its rack."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_TOPOLOGY_BYTES).decode()
        places = parse_topology(text, file.name)
    except (OSError, UnicodeDecodeError, TopologyError) as error:
        _refuse(f"--topology {file}: {error}")
    level = next((level for level in _LEVELS if all(level in place for place in places.values())), "")
    if not level:
        _refuse(f"--topology {file}: no leaf or rack of all nodes stands in it")
    return {node: place[level] for node, place in places.items()}


def _refuse(line: str) -> NoReturn:
    say(line)
    raise typer.Exit(EXIT_USAGE)
