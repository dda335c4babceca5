"""What a rank and its writer process say to each other, pickled, over a socket of their own."""

from __future__ import annotations

from dataclasses import dataclass

from .slot_files import CheckpointName
from .state_layout import StateLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterPlace:
    """Once, at the beginning. next_rank, previous_rank: who holds my copy, and whose I hold; -1: nobody's.
    is_previous_here: that one's own slots lie in this node's folder, and need no copy there.

    store: host and port of the writers' own meeting place; None: one rank. with_sync: the local tier is a disk.
    keep_ranks: whose slots belong on this node; of a node's lowest rank alone, who clears up. wait_s: for other ranks.
    """

    rank: int
    world: int
    folder: str
    store: tuple[str, int] | None
    next_rank: int
    previous_rank: int
    is_previous_here: bool
    with_sync: bool
    keep_ranks: frozenset[int] | None
    persistent: str | None
    keep_persistent: int
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOrder:
    """slot: -1: this rank has nothing for this step, which is no checkpoint then. upload: carry it to storage as well.

    structure: pickled skeleton, where it is another than before. whole: the newest that all ranks have, to be kept.
    """

    name: CheckpointName
    slot: int
    layout: StateLayout | None = None
    values: bytes = b""
    structure: bytes = b""
    upload: bool = False
    whole: CheckpointName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Of a save order. is_whole: all ranks' parts lie in their slots. is_copied: and with their
    partners. problem: why not, in words.
    """

    name: CheckpointName
    slot: int
    is_whole: bool
    is_copied: bool
    will_upload: bool
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """Of an upload that was agreed on. problem: empty where the checkpoint stands in storage, whole."""

    name: CheckpointName
    slot: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The writer has met the others. problem: why it has not; then no save counts as whole."""

    problem: str = ""
