"""``python -m benchmarks.fit_confidence DIR... [--write]``: what the strength of evidence was worth, from kept runs.

DIR: folders of ``whichrank bench --results`` whose runs have seeds for tuning; those of held-out seeds are left out, so
that what is shown of calibration is never what was fitted. Fits ``processors/cluster/confidence.toml`` (its form stands
in ``confidence.py``) by penalised maximum likelihood: offsets of kinds are drawn towards the common one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from whichrank.processors.cluster import confidence
from whichrank.processors.cluster.confidence import FILE, Reliability, load_reliability
from whichrank.simulator.scenarios.grounds import HELD_OUT_SEED
from whichrank.simulator.scoring.statistics import Told, brier, brier_of_constant, calibration_error

#: Standard deviations of the priors: of a kind's offset about the common one, of the common one, of the slope about 1.
OF_KIND, OF_OFFSET, OF_SLOPE = 1.2, 3.0, 0.5
_ROUNDS = 60


class Word(NamedTuple):
    """One incident that was told. strength: of its evidence."""

    kind: str
    strength: float
    right: bool


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--write", action="store_true", help=f"into {FILE}")
    options = parser.parse_args(arguments)
    words = [word for folder in options.folders for word in read_words(folder)]
    if not words:
        print("no runs with seeds for tuning in these folders", file=sys.stderr)
        return 1
    fitted = fit(words)
    for name, reliability in (("as told now", load_reliability()), ("as fitted", fitted)):
        told: list[Told] = [(reliability.probability(word.strength, word.kind), word.right) for word in words]
        print(
            f"{name}: calibration error {calibration_error(told):.3f}, Brier score {brier(told):.4f} "
            f"(constant: {brier_of_constant(told):.4f}), right {sum(w.right for w in words)} of {len(words)}"
        )
    text = toml_of(fitted, words)
    if options.write:
        Path(confidence.__file__).with_name(FILE).write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


def read_words(folder: Path) -> list[Word]:
    """Of one folder of results, whatever version of the code they are of."""
    now, words = load_reliability(), []
    for path in sorted(folder.glob("*/*.json")):
        kept = json.loads(path.read_bytes())
        if "score" not in kept or int(kept["seed"]) >= HELD_OUT_SEED or not kept["score"]:
            continue
        score = kept["score"]
        for (probability, right), kind in zip(score["told"], score.get("told_kinds") or (), strict=True):
            words.append(Word(kind, now.strength(float(probability), kind), bool(right)))
    return words


def fit(words: Sequence[Word]) -> Reliability:
    """Newton's method on the penalised log-likelihood of a logistic regression, with steps halved until they gain."""
    kinds = sorted({word.kind for word in words})
    place = {kind: 2 + index for index, kind in enumerate(kinds)}
    design = np.zeros((len(words), 2 + len(kinds)))
    design[:, 0] = [math.log(word.strength / (1.0 - word.strength)) for word in words]
    design[:, 1] = 1.0
    for row, word in enumerate(words):
        design[row, place[word.kind]] = 1.0
    right = np.array([word.right for word in words], float)
    prior = np.array([1.0, 0.0, *np.zeros(len(kinds))])
    weight = np.array([OF_SLOPE**-2, OF_OFFSET**-2, *np.full(len(kinds), OF_KIND**-2)])

    def loss_of(point: np.ndarray) -> float:
        logits = design @ point
        likelihood = np.sum(right * logits - np.logaddexp(0.0, logits))
        return float(0.5 * np.sum(weight * (point - prior) ** 2) - likelihood)

    at = prior.copy()
    for _ in range(_ROUNDS):
        p = 1.0 / (1.0 + np.exp(-(design @ at)))
        gradient = design.T @ (right - p) - weight * (at - prior)
        curvature = (design * (p * (1.0 - p))[:, None]).T @ design + np.diag(weight)
        step = np.linalg.solve(curvature, gradient)
        while loss_of(at + step) > loss_of(at) and float(np.abs(step).max()) > 1e-9:
            step = step / 2.0
        at = at + step
    return Reliability(
        slope=round(float(max(at[0], 0.05)), 3),
        offset=round(float(at[1]), 3),
        offsets={kind: round(float(at[1] + at[place[kind]]), 3) for kind in kinds},
    )


def toml_of(fitted: Reliability, words: Sequence[Word]) -> str:
    seen: Mapping[str, int] = Counter(word.kind for word in words)
    right: Mapping[str, int] = Counter(word.kind for word in words if word.right)
    lines = [
        "# What the strength of evidence is worth. Written by benchmarks/fit_confidence.py, read by confidence.py.",
        f"# From {len(words)} incidents of simulated faults, {sum(right.values())} of them told rightly.",
        f"slope = {fitted.slope}",
        f"offset = {fitted.offset}",
        "",
        "[offsets]",
        *(f"{kind} = {offset}  # {right[kind]} of {seen[kind]} right" for kind, offset in fitted.offsets.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
