"""Overlapping claims on one stretch of time, made into pieces that do not overlap: each nanosecond goes to one claim.

So what two causes lay claim to is charged once, and the pieces sum to the stretch exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from ...telemetry.vocabulary import TimeBucket


@dataclass(frozen=True, slots=True)
class Claim:
    """Wants [begin_ns, end_ns) for a bucket. Of several the higher rank gets it, of equal ones the first named."""

    begin_ns: int
    end_ns: int
    bucket: TimeBucket
    cause: str = ""
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    begin_ns: int
    end_ns: int
    bucket: TimeBucket
    cause: str = ""

    @property
    def ns(self) -> int:
        """The piece's length in nanoseconds."""
        return self.end_ns - self.begin_ns


def partition(begin_ns: int, end_ns: int, claims: Iterable[Claim]) -> list[Piece]:
    """Pieces in order that cover [begin_ns, end_ns) without gap, each of the claim with the highest rank there.

    What nobody claims is unknown.
    """
    inside = [claim for claim in claims if claim.begin_ns < end_ns and claim.end_ns > max(begin_ns, claim.begin_ns)]
    edges = {begin_ns, end_ns}
    for claim in inside:
        edges.update((max(begin_ns, claim.begin_ns), min(end_ns, claim.end_ns)))
    borders = sorted(edges)
    pieces: list[Piece] = []
    for first, last in itertools.pairwise(borders):
        over = [claim for claim in inside if claim.begin_ns <= first and claim.end_ns >= last]
        best = max(over, key=lambda claim: claim.rank, default=None)
        bucket, cause = (best.bucket, best.cause) if best else (TimeBucket.UNKNOWN, "")
        if pieces and (pieces[-1].bucket, pieces[-1].cause) == (bucket, cause):
            pieces[-1] = Piece(pieces[-1].begin_ns, last, bucket, cause)
        else:
            pieces.append(Piece(first, last, bucket, cause))
    return pieces
