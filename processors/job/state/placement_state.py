"""Where the attempt's ranks run, as that was last told; and whose job it is."""

from __future__ import annotations

from ...placement_document import MovedRank, PlacementReport


class PlacementState:
    """told: what was last told, None nothing; times_told: how often after the first, of this attempt. due_ns: when it
    is told again, 0 never. changed: within one record; moved: a rank that another node tells of, too (neither is saved:
    it is told again).

    owner: of the job. gpus_held: by the scheduler's word; 0 unknown.
    """

    def __init__(self) -> None:
        self.told: PlacementReport | None = None
        self.times_told = 0
        self.due_ns = 0
        self.changed = False
        self.moved: MovedRank | None = None
        self.owner = ""
        self.gpus_held = 0

    def note_move(self, rank: int, before: str, now: str) -> None:
        """Notes that two nodes tell of this rank; only the first such rank is kept. before, now: names of the nodes."""
        if self.moved is None:
            self.moved = MovedRank(rank=rank, before=before, now=now)
