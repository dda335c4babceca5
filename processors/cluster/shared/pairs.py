"""Two jobs that disturb each other over one spine: it needs nothing that is broken. Pure over a scene."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ....telemetry.incident_document import EvidenceRow
from .fitting import together
from .placements import Attempt
from .rules import Rule, rules_of
from .scene import Scene
from .scoring import CHANCE, Candidate
from .signs import FAULTS
from .troubles import Trouble

#: Two jobs that disturb each other: one has run so long before without trouble, the other has begun so shortly before.
QUIET_S, JUST_BEGUN_S = 300.0, 300.0


def pairs(scene: Scene) -> Iterable[Candidate]:
    """Two jobs that are slow only while both exchange over one spine: it needs nothing that is broken."""
    for rule in rules_of("pair"):
        fitting = together(rule, scene.fitting(rule))
        attempts = [(t, scene.attempts[t.id]) for t in fitting]
        known = [(t, attempt) for t, attempt in attempts if attempt is not None]
        for index, (one, first) in enumerate(known):
            for other, second in known[index + 1 :]:
                yield from _pair(scene, rule, (one, first), (other, second))


def _pair(
    scene: Scene, rule: Rule, one: tuple[Trouble, Attempt], other: tuple[Trouble, Attempt]
) -> Iterable[Candidate]:
    (trouble, first), (second_trouble, second) = one, other
    onset = min(trouble.onset, second_trouble.onset)
    begun, before = max(first.begin, second.begin), min(first.begin, second.begin)
    if not (0 <= onset - begun <= JUST_BEGUN_S and begun - before >= QUIET_S):
        return
    older = first if first.begin < second.begin else second
    if any(t.job == older.job and before < t.onset < begun for t in scene.memory.recent(before)):
        return  # it was in trouble before the other came
    counts = [scene.memory.landscape.counts(attempt) for attempt in (first, second)]
    leaves = [{v for v in count if v[0] == "leaf"} for count in counts]
    if any(len(found) < 2 for found in leaves):
        return  # what stays under one leaf crosses no spine
    spines = sorted(v for v in counts[0] if v[0] == rule.attribute and v in counts[1])
    for value in spines:
        signs = scene.memory.signs.of(value[1], frozenset({"switch"}), onset, rule.window_s)
        if any(sign.severity in FAULTS for sign in signs):
            continue  # what is broken explains it; that a switch is busy does not
        pairs = max(1, len(scene.running) * (len(scene.running) - 1) // 2)
        surprise = math.log(max(1.0, (scene.now - before) / JUST_BEGUN_S))
        yield Candidate(
            rule=rule,
            value=value[1],
            covers={t.id: math.log(rule.p1 / CHANCE) for t in (trouble, second_trouble)},
            prior=rule.prior
            + min(4.0, surprise)
            + 1.0
            - math.log(scene.memory.landscape.number_of_values(rule.attribute, scene.nodes))
            - 0.5 * math.log(pairs),
            onset=onset,
            exposed=2,
            jobs=frozenset({trouble.job, second_trouble.job}),
            words={"value": value[1], "attribute": rule.attribute, "jobs": 2},
            evidence=[
                EvidenceRow(
                    signal="placement",
                    source=f"job {max((first, second), key=lambda a: a.begin).job}",
                    time_s=begun,
                    value=value[1],
                    shows=f"it began {onset - begun:.0f} s before both were slow; job {older.job} had run for "
                    f"{(begun - before) / 60:.0f} min over the same spine without trouble",
                )
            ],
        )
