"""Whom to look at: ranks that others wait for, peers, nodes and devices that the log names. Never who reports them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ...telemetry.ring_layout import ranks_words
from ...telemetry.vocabulary import Bucket, Scope
from .details import devices_in
from .launcher_tables import ROOT_RULE
from .model import NOBODY_SUSPECTED, Episode, Form, Rank, StatementGroup, Suspects, Witness
from .standstills import Difference

Name = TypeVar("Name", int, str)
#: More of them are no suspects but everybody.
MOST_NAMED = 16
NEAR_LINES = 3
#: Classes whose statement, on its own rank or device, says where the fault is.
OF_ITS_OWN = frozenset({Scope.GPU, Scope.NODE, Scope.RANK, Scope.LINK})
STANDS_STILL = frozenset({"collective_timeout", "hang", "collective_mismatch"})
#: How a job ends that stood still until then.
WAITED_UNTIL = frozenset({"time_limit"})
SAYS = {
    "elsewhere": "is in another collective than the others",
    "behind": "is behind the others",
    "silent": "says nothing",
}


def suspects_of(primary: StatementGroup, episode: Episode, difference: Difference | None) -> Suspects:
    """Whom to look at, from the most telling source: a counted difference, what the statement names, who made it.

    difference: of the ranks in a standstill, None without one.
    """
    first = primary.first
    failure = first.failure
    if difference is not None and failure.name in STANDS_STILL and not primary.missing:
        return Suspects(ranks=difference.ranks, missing=_if_absent(difference), why=told_difference(difference))
    missing, peers_named = _named(primary, episode)
    if missing or peers_named:
        ranks, peers = _most_named(missing), _most_named(peers_named)
        named = ranks_words(ranks) if ranks else ", ".join(peers)
        return Suspects(ranks=ranks, missing=ranks, peers=peers, why=f"what it names is {named}")
    if failure.bucket is Bucket.PLANNED:
        return NOBODY_SUSPECTED
    nodes = _nodes(primary, episode)
    ranks = tuple(sorted(primary.ranks)) if 0 < len(primary.ranks) <= MOST_NAMED else ()
    if first.form is not Form.LAUNCHER and not ranks and first.line.node is None and not nodes:
        return _as_the_launcher_says(episode) or _as_its_neighbour(first, episode) or NOBODY_SUSPECTED
    if failure.scope not in OF_ITS_OWN or failure.rank in (Rank.SYMPTOM, Rank.CASCADE, Rank.TEARDOWN):
        return Suspects(nodes=nodes) if nodes else NOBODY_SUSPECTED
    own = (first.line.node,) if first.line.node and not nodes and not first.points_elsewhere else nodes
    devices = dict.fromkeys((*((first.device,) if first.device else ()), *devices_in(first.text)))
    return Suspects(ranks=ranks, nodes=own, devices=tuple(devices))


def _named(primary: StatementGroup, episode: Episode) -> tuple[Mapping[int, int], Mapping[str, int]]:
    """Ranks and hosts that it names, or that others of the same trouble do."""
    failure = primary.first.failure
    if primary.missing:
        return primary.missing, primary.peers
    missing: dict[int, int] = {}
    peers = dict(primary.peers)
    is_of_others = failure.rank in (Rank.SYMPTOM, Rank.CASCADE) or failure.scope in (Scope.LINK, Scope.SERVICE)
    if not is_of_others and failure.name not in WAITED_UNTIL:
        return missing, peers
    for group in episode.groups:
        if group.first.points_elsewhere:
            for rank, count in group.missing.items():
                missing[rank] = missing.get(rank, 0) + count
            for peer, count in group.peers.items() if not primary.peers else ():
                peers[peer] = peers.get(peer, 0) + count
    return missing, peers


def told_difference(difference: Difference) -> str:
    """In words which ranks differ from the others, and in what, with both values where they are known."""
    who = ranks_words(difference.ranks)
    says = SAYS[difference.differs]
    if len(difference.ranks) > 1:
        says = says.replace("is ", "are ", 1).replace("says", "say")
    at = f" ({difference.theirs}, the others {difference.others})" if difference.theirs else ""
    return f"{who} {says}{at}"


def _if_absent(difference: Difference) -> tuple[int, ...]:
    return () if difference.differs == "elsewhere" else difference.ranks


def _nodes(primary: StatementGroup, episode: Episode) -> tuple[str, ...]:
    """Nodes that the statement is about, or that others of the same class are."""
    own = primary.first.target.node
    if own is not None:
        return (own,)
    found = {
        group.first.target.node: None
        for group in episode.groups
        if group.first.failure is primary.first.failure and group.first.target.node
    }
    if not found and primary.first.failure.scope is Scope.NODE:
        # A node of which the statement has no name, and one that all others who name one are about.
        named = {group.first.target.node: None for group in episode.groups if group.first.target.node}
        found = named if len(named) == 1 else {}
    return tuple(found)[:MOST_NAMED]


def _as_its_neighbour(first: Witness, episode: Episode) -> Suspects | None:
    """Of lines without a prefix: what was said right before, with a rank, was of the same process."""
    for group in episode.groups:
        line = group.first.line
        if (
            line.rank is not None
            and line.source == first.line.source
            and 0 < first.first_line - line.number <= NEAR_LINES
        ):
            return Suspects(ranks=(line.rank,), devices=(group.first.device,) if group.first.device else ())
    return None


def _as_the_launcher_says(episode: Episode) -> Suspects | None:
    """A statement that tells no rank, where the launcher's first entry does: the exit code fits an exception."""
    entries = [
        group.first
        for group in episode.groups
        if group.first.rule == ROOT_RULE and group.first.exit_code in (1, 2, -6, 134, None)
    ]
    if len(entries) != 1:
        return _launcher_local_rank(episode)
    line = entries[0].line
    return Suspects(
        ranks=() if line.rank is None else (line.rank,),
        nodes=() if line.node is None else (line.node,),
        why="the launcher names the rank that ended first",
    )


def _launcher_local_rank(episode: Episode) -> Suspects | None:
    """A launcher that tells only the place on its node: no rank of the job, but a help to people."""
    told = {
        (group.first.line.local_rank, group.first.line.node)
        for group in episode.groups
        if group.first.form is Form.LAUNCHER and group.first.line.local_rank is not None
    }
    if len(told) != 1:
        return None
    local, node = told.pop()
    return Suspects(nodes=(node,) if node else (), why=f"the launcher says that local rank {local} ended")


def _most_named(counts: Mapping[Name, int]) -> tuple[Name, ...]:
    ordered = sorted(counts, key=lambda each: (-counts[each], each))
    return tuple(sorted(ordered[:MOST_NAMED]))
