"""Small slow-downs: the bound behaves as a bound, what is counted cannot lie, and sound jittery jobs name nobody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.outside.slow import Measured, lines, noise_of, simulate
from tests.outside.slow_bound import FALSE_ALARM_STEPS, steps_to_decide
from tests.outside.slow_draws import Drawn, draw, own_seconds
from tests.outside.slow_feed import Said

DRAWN = Drawn(name="one", seed=5, who="one", share=0.4, step_s=0.1, jitter=0.05, ranks=4, rank=2, first=200, steps=320)


def decided(drawn: Drawn) -> int | None:
    logarithms = np.log(own_seconds(drawn)[:, [drawn.rank]] / drawn.step_s)
    return steps_to_decide(logarithms, drawn.first, drawn.shift, noise_of(drawn))


def test_the_bound_needs_longer_for_less() -> None:
    waits = [
        np.mean([decided(replace(DRAWN, share=share, jitter=jitter, seed=seed)) or 120 for seed in range(20)])
        for share, jitter in ((0.4, 0.05), (0.2, 0.1), (0.15, 0.15))
    ]
    assert waits[0] < 3.0 < waits[1] < waits[2]


def test_the_bound_has_one_false_alarm_in_ten_thousand_steps() -> None:
    """As far as 300,000 sound steps tell."""
    sound = replace(DRAWN, who="", jitter=0.15, steps=300_000)
    logarithms = np.log(own_seconds(sound)[:, [0]] / sound.step_s)
    alarms, first = 0, 0
    while (waited := steps_to_decide(logarithms[first:], 0, 0.18, noise_of(sound))) is not None:
        alarms, first = alarms + 1, first + waited
    assert 0.4 < alarms * FALSE_ALARM_STEPS / sound.steps < 2.5


def test_a_rank_is_named_once_and_stays_named() -> None:
    measured = simulate(DRAWN)
    assert [(said.kind, said.ranks, said.resolved) for said in measured.said] == [("rank_slow", (2,), False)]
    assert measured.named_after is not None
    assert measured.named_after <= 15


def test_all_ranks_are_told_where_steps_are_short() -> None:
    """512 steps of 40 ms are 20 s: nothing was told of those, however long it lasted."""
    drawn = replace(DRAWN, who="all", share=0.3, step_s=0.04, jitter=0.1, first=700, steps=1300)
    assert [(said.kind, said.ranks, said.resolved) for said in simulate(drawn).said] == [("slow_together", (), False)]


@pytest.mark.parametrize("number", [0, 11, 22, 32, 35, 54])
def test_a_sound_job_names_nobody_where_steps_lean_on_one_another(number: int) -> None:
    """Of each of these a rank was named while the noise was taken for that of steps that know nothing of each other."""
    assert simulate(draw(1, number, healthy=True, is_real=False)).said == []


def test_what_is_late_wrong_or_told_twice_falls_short() -> None:
    def state(*said: Said, drawn: Drawn = DRAWN) -> dict[str, str]:
        found = lines([Measured(drawn=drawn, bound=4, said=said)], (1, 1), "here")
        return {line.asked: line.state for line in found}

    good = Said(kind="rank_slow", ranks=(2,), at_step=209, resolved=False)
    within = "one rank slower: told within 1.5 x the bound or 10 steps >= 95%"
    assert state(good)[within] == "ok"
    assert state(replace(good, at_step=211))[within] == "SHORT"
    assert state(replace(good, ranks=(1,)))["nobody else named >= 100%"] == "SHORT"
    assert state(replace(good, resolved=True))["never resolved while it lasts >= 100%"] == "SHORT"
    assert state(good, replace(good, at_step=260))["no more than one incident >= 98%"] == "SHORT"
    sound = replace(DRAWN, who="", share=0.0)
    assert state(good, drawn=sound)["healthy: no rank named >= 100%"] == "SHORT"
