"""The results as rows of faultbench's table, and what stands in a results folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from whichrank.simulator.scoring.summary import ScoreLine, not_run

from .comparison import ASKED_WITHIN, FLOOR_S, Tied

RESULT_FILE = "tie.json"
_KINDS = "real and simulated: kinds of faults with the same finding"
_MEDIANS = "real and simulated: medians of wait and self time"
ASKED_KINDS = 10
ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "build" / "tie"


def stored(results: Path = RESULTS) -> list[Tied]:
    """All that was run there, in a fixed order."""
    return [Tied.from_json(json.loads(path.read_text())) for path in sorted(results.glob(f"*/*/{RESULT_FILE}"))]


def tie_lines(results: Path = RESULTS) -> list[ScoreLine]:
    """Of what stands in a results folder."""
    return lines_of(stored(results))


def lines_of(tied: Sequence[Tied]) -> list[ScoreLine]:
    if not tied:
        why = "make tie"
        return [not_run(_KINDS, f">= {ASKED_KINDS}", why), not_run(_MEDIANS, f"within {ASKED_WITHIN:.0%}", why)]
    kinds = sorted({each.kind for each in tied})
    lines = [line for kind in kinds for line in _of_kind(kind, [each for each in tied if each.kind == kind])]
    faults = sorted({each.kind for each in tied if not each.is_clean})
    same = sum(all(each.same_finding for each in tied if each.kind == kind) for kind in faults)
    lines.append(
        ScoreLine(
            name=_KINDS,
            asked=f">= {ASKED_KINDS}",
            measured=str(same),
            share=f"{same} of {len(faults)}",
            ok=same >= ASKED_KINDS and all(each.same_finding for each in tied),
            is_run=len(faults) >= ASKED_KINDS,
        )
    )
    pairs = [pair for each in tied for pair in each.pairs]
    lines.append(_medians(_MEDIANS, tied))
    small = [pair for pair in pairs if not pair.is_measurable]
    lines.append(
        ScoreLine(
            name=f"real and simulated: medians below {1e3 * FLOOR_S:g} ms, too small in both",
            asked="",
            measured="not compared",
            share=f"{sum(pair.agrees for pair in small)} of {len(small)}",
        )
    )
    return lines


def _of_kind(kind: str, tied: Sequence[Tied]) -> Iterator[ScoreLine]:
    same = sum(each.same_finding for each in tied)
    problems = [each.problem for each in tied if each.problem]
    if problems:
        said = problems[0]
    elif same == len(tied):
        said = _words(tied[0].real)
    else:
        other = next(each for each in tied if not each.same_finding)
        said = f"real {_words(other.real)}, simulated {_words(other.simulated)}"
    yield ScoreLine(
        name=f"tie, {kind}: finding", asked="same", measured=said, share=f"{same} of {len(tied)}", ok=same == len(tied)
    )
    yield _medians(f"tie, {kind}: medians", tied)
    delays = [each for each in tied if each.real_delay_s is not None and each.simulated_delay_s is not None]
    if delays:
        measured = ", ".join(f"{each.real_delay_s:.1f} s / {each.simulated_delay_s:.1f} s" for each in delays)
        yield ScoreLine(name=f"tie, {kind}: told after, real / simulated", asked="", measured=measured, share="")


def _medians(name: str, tied: Sequence[Tied]) -> ScoreLine:
    pairs = [pair for each in tied for pair in each.pairs]
    counted = [pair for pair in pairs if pair.is_measurable or not pair.agrees]
    agree = [pair for pair in counted if pair.agrees]
    worst = max(counted, key=lambda pair: pair.error, default=None)
    return ScoreLine(
        name=name,
        asked=f"within {ASKED_WITHIN:.0%}",
        measured="none"
        if worst is None
        else f"worst {worst.error:.0%} ({worst.what} of rank {worst.rank} "
        f"{worst.when}: {1e3 * worst.real_s:.0f} ms / {1e3 * worst.simulated_s:.0f} ms)",
        share=f"{len(agree)} of {len(counted)}",
        ok=all(each.pairs for each in tied) and len(agree) == len(counted),
    )


def _words(found: Sequence[object]) -> str:
    return "; ".join(map(str, found)) or "nothing"
