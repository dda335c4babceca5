"""Who is slow, who only waits; which number went bad first. With the noise of real jobs and without false alarms."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.processors.job.synthetic_job import Action, Call, Enter, MemoryContext, SyntheticJob, Work, drive
from whichrank.processors.job.detectors.slow.step_times import StepTimes
from whichrank.processors.job.detectors.slow.straggler import find_straggler
from whichrank.processors.job.steps.self_times import spread_readings
from whichrank.telemetry.records import Finding
from whichrank.telemetry.vocabulary import Op, Phase


def only(context: MemoryContext) -> Finding:
    found = list(context.final().values())
    assert len(found) == 1, [finding.key for finding in found]
    return found[0]


def steps_needed(job: SyntheticJob, context: MemoryContext, onset: int, guilty: int) -> int:
    """Slow steps that the guilty rank had finished when the finding came."""
    told = context.findings()[0].time_ns
    wall = 1_790_000_000 * 1_000_000_000
    return sum(1 for rank, step, end, *_ in job.finished if rank == guilty and step >= onset and end + wall <= told)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
@pytest.mark.parametrize(("share", "step_s"), [(1.3, 0.1), (1.3, 1.0), (2.0, 0.3)])
def test_a_straggler_is_found_within_ten_steps(ranks: int, share: float, step_s: float) -> None:
    for seed in range(2):
        guilty = (seed + 1) % ranks

        def slow(rank: int, step: int, guilty: int = guilty) -> float:
            return share if rank == guilty and step >= 30 else 1.0

        job = SyntheticJob(ranks=ranks, steps=60, step_s=step_s, seed=seed, slow=slow)
        context = drive(job.records())
        finding = only(context)
        assert (finding.body["kind"], [s["rank"] for s in finding.body["suspects"]]) == ("rank_slow", [guilty])
        assert abs(finding.body["first_bad"]["step"] - 30) <= 1
        assert steps_needed(job, context, 30, guilty) <= 10


@pytest.mark.parametrize("ranks", [2, 4])
def test_ten_percent_are_found_too(ranks: int) -> None:
    for seed in range(3):
        job = SyntheticJob(
            ranks=ranks, steps=90, seed=seed, slow=lambda rank, step: 1.12 if rank == 1 and step >= 50 else 1.0
        )
        finding = only(drive(job.records()))
        assert (finding.body["kind"], [s["rank"] for s in finding.body["suspects"]]) == ("rank_slow", [1])


def test_a_rank_that_was_always_slow_hides_no_other_and_may_become_slower_still() -> None:
    """The one that does more by design stays in the comparison; who overtakes it is told beside it."""

    def slow(rank: int, step: int) -> float:
        return 1.3 if rank == 0 else 1.8 if rank == 2 and step >= 80 else 1.0

    context = drive(SyntheticJob(ranks=4, steps=140, step_s=0.3, slow=slow).records())
    told = {finding.body["suspects"][0]["rank"]: finding.body for finding in context.final().values()}
    assert {rank: body["kind"] for rank, body in told.items()} == {0: "rank_slow", 2: "rank_slow"}
    assert abs(told[2]["first_bad"]["step"] - 80) <= 1

    context = drive(
        SyntheticJob(
            ranks=4,
            steps=140,
            step_s=0.3,
            slow=lambda rank, step: (1.9 if step >= 80 else 1.3) if rank == 0 else 1.0,
        ).records()
    )
    finding = only(context)
    assert (finding.body["suspects"][0]["rank"], finding.body["severity"]) == (0, "ticket")
    assert abs(finding.body["first_bad"]["step"] - 80) <= 1


@pytest.mark.parametrize(("second", "named"), [(2.2, {1, 2}), (1.2, {1})])
def test_a_second_slow_rank_is_told_while_the_first_still_is_and_only_if_others_wait_for_it(
    second: float, named: set[int]
) -> None:
    def slow(rank: int, step: int) -> float:
        return 1.5 if rank == 1 and step >= 40 else second if rank == 2 and step >= 90 else 1.0

    context = drive(SyntheticJob(ranks=4, steps=150, step_s=0.3, slow=slow).records())
    told = [finding.body for finding in context.final().values()]
    assert {(body["kind"], body["suspects"][0]["rank"]) for body in told} == {("rank_slow", rank) for rank in named}
    assert not any(finding.cleared for finding in context.final().values())


def test_all_slower_together_is_told_beside_a_rank_that_was_always_slow() -> None:
    def slow(rank: int, step: int) -> float:
        return (1.3 if rank == 0 else 1.0) * (1.5 if step >= 90 else 1.0)

    context = drive(SyntheticJob(ranks=4, steps=180, step_s=0.3, slow=slow).records())
    told = sorted((finding.body["kind"], finding.body.get("always", False)) for finding in context.final().values())
    assert told == [("rank_slow", True), ("slow_together", False)]


@pytest.mark.parametrize("phase", [Phase.DATA, Phase.FORWARD, Phase.OPTIMIZER])
def test_the_slow_phase_is_told(phase: Phase) -> None:
    job = SyntheticJob(
        steps=60, delays=[lambda rank, step, now: 0.06 if now is phase and rank == 2 and step >= 30 else 0]
    )
    finding = only(drive(job.records()))
    assert finding.body["suspects"][0]["rank"] == 2
    assert finding.body["suspects"][0]["where"]["phase"] == phase.name.lower()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [2, 4])
def test_noise_alone_is_no_straggler(seed: int, ranks: int) -> None:
    job = SyntheticJob(ranks=ranks, steps=200, seed=seed, jitter=0.06)
    assert drive(job.records()).findings() == []


def test_step_times_that_vary_one_to_four_together_are_no_straggler_and_no_change() -> None:
    lengths = [random.Random(5).uniform(1.0, 4.0) for _ in range(1)] + [
        random.Random(step).uniform(1.0, 4.0) for step in range(200)
    ]
    job = SyntheticJob(ranks=3, steps=200, slow=lambda rank, step: lengths[step])
    assert drive(job.records()).findings() == []


def test_rank_0_that_evaluates_or_saves_now_and_then_is_no_straggler() -> None:
    def edit(rank: int, step: int, actions: list[Action]) -> list[Action]:
        if rank == 0 and step % 7 == 6:
            return [*actions, Enter(Phase.CHECKPOINT), Work(0.5)]
        if rank == 0 and step % 10 == 9:
            return [*actions, Enter(Phase.OTHER), Work(0.3)]
        return actions

    assert drive(SyntheticJob(steps=150, edit=edit).records()).findings() == []


def pipeline_step(job: SyntheticJob, rank: int, step: int) -> list[Action]:
    """A stage: activations from the stage before and to the one after, gradients back. Nothing but P2P calls."""
    last = job.ranks - 1
    before = [Call("world", op=Op.RECV, peer=rank - 1)] if rank else []
    after = [Call("world", op=Op.SEND, peer=rank + 1), Call("world", op=Op.RECV, peer=rank + 1)] if rank < last else []
    back = [Call("world", op=Op.SEND, peer=rank - 1)] if rank else []
    work = Work(job.step_s / job.ranks)
    return [Enter(Phase.OTHER), *before, work, *after, Work(0.002), *back]


@pytest.mark.parametrize(
    ("since", "scope", "named"),
    [(30, "rank", [1]), (0, "application", [])],  # a stage that was always longest was most likely cut so
)
def test_a_slow_stage_is_the_rank_that_waits_for_nobody(since: int, scope: str, named: list[int]) -> None:
    job = SyntheticJob(
        ranks=3,
        steps=70,
        step_s=0.3,
        program=pipeline_step,
        slow=lambda rank, step: 2.0 if rank == 1 and step >= since else 1.0,
    )
    body = only(drive(job.records())).body
    assert (body["kind"], body["scope"]) == ("rank_slow", scope)
    assert [item["rank"] for item in body["suspects"]] == named


def test_a_rank_that_looks_slow_because_another_became_faster_is_not_blamed() -> None:
    job = SyntheticJob(ranks=2, steps=90, slow=lambda rank, step: 0.75 if rank == 0 and step >= 40 else 1.0)
    assert not drive(job.records()).final()


def test_a_rank_that_becomes_slow_by_and_by_is_told_and_where_it_began() -> None:
    """A quarter of a step over a thousand steps: no window of steps sees it."""

    def slow(rank: int, step: int) -> float:
        return 1.0 + min(0.25, max(0, step - 300) / 4000) if rank == 1 else 1.0

    job = SyntheticJob(ranks=3, steps=1200, step_s=0.1, jitter=0.04, slow=slow)
    body = only(drive(job.records())).body
    assert (body["kind"], [item["rank"] for item in body["suspects"]]) == ("rank_slow", [1])
    assert body["evidence"][0]["signal"] == "steps.drift"
    assert 300 < body["first_bad"]["step"] < 900


def test_all_ranks_of_a_node_are_the_node() -> None:
    job = SyntheticJob(
        ranks=6,
        steps=60,
        slow=lambda rank, step: 1.4 if rank in (2, 3) and step >= 30 else 1.0,
        node_of=lambda rank: f"node-{rank // 2}",
    )
    body = only(drive(job.records())).body
    assert (body["kind"], body["scope"]) == ("rank_slow", "node")
    (suspect,) = body["suspects"]
    assert (suspect["scope"], suspect["id"], suspect["ranks"]) == ("node", "node-1", "2-3")
    assert {item["ranks"] for item in body["ruled_out"]} == {"0-1,4-5"}


def test_all_members_of_a_group_play_a_part_that_grew() -> None:
    """Ranks 1 and 3 hold the same stage on two nodes: neither they nor their nodes are to blame."""
    job = SyntheticJob(
        steps=60,
        slow=lambda rank, step: 1.4 if rank in (1, 3) and step >= 30 else 1.0,
        node_of=lambda rank: f"node-{rank // 2}",
        groups={"stage_1": [1, 3]},
    )
    body = only(drive(job.records())).body
    assert (body["kind"], body["scope"], body["suspects"]) == ("rank_slow", "application", [])
    assert "stage_1" in body["evidence"][1]["shows"]


def saving(writers: list[int], takes_s: Callable[[int, int], float]):  # type: ignore[no-untyped-def]
    """These ranks save in every fifth step, for so long; all meet at a barrier after it."""

    def edit(rank: int, step: int, actions: list[Action]) -> list[Action]:
        if step % 5 != 4:
            return actions
        own: list[Action] = []
        if rank in writers:
            own = [Enter(Phase.CHECKPOINT), Work(takes_s(rank, step)), Enter(Phase.OTHER)]
        return [*actions, *own, Call("world", op=Op.BARRIER, bytes=0)]

    return edit


@pytest.mark.parametrize("writers", [[0], [0, 1, 2, 3]])
def test_a_rank_whose_saves_become_slow_is_told_and_again_when_they_are_not(writers: list[int]) -> None:
    edit = saving(writers, lambda rank, step: 0.9 if rank == 0 and 50 <= step < 90 else 0.3)
    found = [finding for finding in drive(SyntheticJob(steps=130, edit=edit).records()).findings()]
    assert [(item.body["kind"], item.body["first_bad"]["step"], item.cleared) for item in found] == [
        ("rank_slow", 54, False),
        ("rank_slow", 54, True),
    ]
    (suspect,) = found[0].body["suspects"]
    assert (suspect["rank"], suspect["where"]["phase"]) == (0, "checkpoint")
    assert {item["who"] for item in found[0].body["ruled_out"]} == {"ranks 1-3"}


def test_storage_that_is_slow_for_all_and_saves_that_vary_name_nobody() -> None:
    slow_for_all = saving([0, 1, 2, 3], lambda rank, step: 0.9 if step >= 50 else 0.3)
    assert not drive(SyntheticJob(steps=110, edit=slow_for_all).records()).final()
    varying = saving([0], lambda rank, step: random.Random(step).uniform(0.2, 0.6))
    assert not drive(SyntheticJob(steps=200, edit=varying).records()).final()


def test_a_straggler_that_recovers_is_cleared_and_may_be_found_again() -> None:
    job = SyntheticJob(
        steps=150, slow=lambda rank, step: 1.4 if rank == 1 and (30 <= step < 60 or step >= 100) else 1.0
    )
    found = drive(job.records()).findings()
    assert [(finding.body["first_bad"]["step"], finding.cleared) for finding in found] == [
        (30, False),
        (30, True),
        (100, False),
    ]


def test_between_nodes_durations_tell_who_is_slow() -> None:
    """Two nodes whose clocks differ by seconds: arrivals cannot be compared, durations can."""
    job = SyntheticJob(
        steps=60,
        slow=lambda rank, step: 1.4 if rank == 3 and step >= 30 else 1.0,
        node_of=lambda rank: f"node-{rank // 2}",
        clock_skew_ns=lambda node: 7_000_000_000 if node == "node-1" else 0,
    )
    finding = only(drive(job.records()))
    assert [item["rank"] for item in finding.body["suspects"]] == [3]


@pytest.mark.parametrize(
    ("slow", "delay_s", "words"),
    [(1.5, 0.0, "are every rank's own work"), (1.0, 0.06, "for its data: what serves them is slower")],
)
def test_all_slower_together_names_nobody(slow: float, delay_s: float, words: str) -> None:
    job = SyntheticJob(
        ranks=2,
        steps=330,
        step_s=0.4,
        slow=lambda rank, step: slow if step >= 180 else 1.0,
        delays=[lambda rank, step, phase: delay_s if phase is Phase.DATA and step >= 180 else 0.0],
    )
    finding = only(drive(job.records()))
    assert (finding.body["kind"], finding.body["suspects"]) == ("slow_together", [])
    assert abs(finding.body["first_bad"]["step"] - 180) <= 1
    assert words in finding.body["evidence"][1]["shows"]


@pytest.mark.parametrize(("last", "ends"), [(200, False), (76, True)])
def test_what_is_slower_of_a_sudden_stays_until_ten_steps_say_otherwise(last: int, ends: bool) -> None:
    """It is told after three steps, when of the last ten most are still as before."""
    job = SyntheticJob(
        ranks=2, steps=90, step_s=2.0, slow=lambda rank, step: 1.4 if 70 <= step < last else 1.0, jitter=0.01
    )
    context = drive(job.records())
    finding = only(context)
    assert (finding.body["kind"], finding.body["first_bad"]["step"]) == ("slow_together", 70)
    assert [finding.cleared for finding in context.findings()] == [False, True][: 1 + ends]


def test_a_network_that_slows_down_is_told_from_slow_ranks() -> None:
    """Transfers of 1 ms take 80 ms from step 180 on; nobody's own work changes."""
    job = SyntheticJob(ranks=3, steps=330, step_s=0.4, transfer_s=lambda step: 0.08 if step >= 180 else 0.001)
    finding = only(drive(job.records()))
    assert (finding.body["kind"], finding.body["suspects"]) == ("slow_together", [])
    assert "a slower network" in finding.body["evidence"][1]["shows"]


def numbers(bad: dict[int, list[int]], value: float = math.nan):  # type: ignore[no-untyped-def]
    """step -> ranks whose loss is bad from there on."""

    def give(rank: int, step: int) -> tuple[float, float]:
        is_bad = any(step >= first and rank in ranks for first, ranks in bad.items())
        return (value if is_bad else 1.0, value if bad and step >= min(bad) else 2.0)

    return give


def test_the_first_rank_with_nan_is_named_although_all_have_it_a_step_later() -> None:
    job = SyntheticJob(steps=40, numbers=numbers({20: [2], 21: [0, 1, 2, 3]}))
    context = drive(job.records())
    finding = only(context)
    body = finding.body
    assert (body["bucket"], body["kind"]) == ("numeric", "numeric_first_rank")
    assert [item["rank"] for item in body["suspects"]] == [2]
    assert body["first_bad"]["step"] == 20
    assert context.findings()[0].time_ns / 1e9 - body["times"]["onset"] < 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_go_bad_everywhere_at_once_name_nobody(value: float) -> None:
    finding = only(drive(SyntheticJob(steps=40, numbers=numbers({20: [0, 1, 2, 3]}, value)).records()))
    assert (finding.body["kind"], finding.body["suspects"]) == ("numeric_all", [])


def exploding(norm_on: list[int], loss_on: list[int], until: int = 10**9):  # type: ignore[no-untyped-def]
    """From step 60 on, gradient norms and losses that are forty times too large, on these ranks."""

    def give(rank: int, step: int) -> tuple[float, float]:
        own = random.Random(step * 10 + rank).uniform(0.8, 1.2)
        factors = [40.0 if 60 <= step < until and rank in ranks else 1.0 for ranks in (loss_on, norm_on)]
        return own * factors[0], 2.0 * own * factors[1]

    return give


@pytest.mark.parametrize(
    ("norm_on", "loss_on", "kind", "named"),
    [
        ([0, 1, 2, 3], [], "numeric_all", []),
        ([0, 1, 2, 3], [0, 1, 2, 3], "numeric_all", []),
        ([2], [], "numeric_first_rank", [2]),  # taken before the reduction
        ([0, 1, 2, 3], [2], "numeric_first_rank", [2]),  # after it: the losses tell
    ],
)
def test_a_gradient_norm_that_explodes(norm_on: list[int], loss_on: list[int], kind: str, named: list[int]) -> None:
    finding = only(drive(SyntheticJob(steps=80, numbers=exploding(norm_on, loss_on)).records()))
    assert finding.body["kind"] == kind
    assert [item["rank"] for item in finding.body["suspects"]] == named
    assert finding.body["first_bad"]["step"] == 60


def test_an_explosion_is_over_when_the_norm_is_back_and_not_when_it_has_become_usual() -> None:
    def kinds(steps: int, until: int) -> list[bool]:
        job = SyntheticJob(steps=steps, step_s=0.1, numbers=exploding([0, 1, 2, 3], [], until))
        return [finding.cleared for finding in drive(job.records()).findings()]

    assert kinds(150, 10**9) == [False]
    assert kinds(150, 110) == [False, True]


def test_an_explosion_in_steps_that_are_closed_by_the_hundred() -> None:
    finding = only(drive(SyntheticJob(steps=240, step_s=0.03, numbers=exploding([0, 1, 2, 3], [2])).records()))
    assert [item["rank"] for item in finding.body["suspects"]] == [2]
    assert finding.body["first_bad"]["step"] == 60


def one_bad_batch(rank_loss: float, norm: float, steps: int):  # type: ignore[no-untyped-def]
    """Rank 2 reads it in step 60; all norms, which lie close together, are so many times larger for some steps."""

    def give(rank: int, step: int) -> tuple[float, float]:
        own = random.Random(step).uniform(0.95, 1.05)
        loss = rank_loss if rank == 2 and step == 60 else 1.0
        return own * loss, 2.0 * own * (norm if 60 <= step < 60 + steps else 1.0)

    return give


@pytest.mark.parametrize(
    ("rank_loss", "norm", "steps", "named"),
    [
        (150.0, 2.7, 20, [[2]]),  # a small part of the sum of many ranks
        (150.0, 2.7, 1, []),  # it is back a step later
        (1.0, 2.7, 8, []),  # nobody's batch
    ],
)
def test_a_bad_batch_among_many_is_known_by_its_loss_and_what_its_step_left_behind(
    rank_loss: float, norm: float, steps: int, named: list[list[int]]
) -> None:
    context = drive(SyntheticJob(steps=80, numbers=one_bad_batch(rank_loss, norm, steps)).records())
    assert [[item["rank"] for item in each.body["suspects"]] for each in context.final().values()] == named


def test_a_spike_of_one_step_is_silent() -> None:
    job = SyntheticJob(steps=90, numbers=exploding([0, 1, 2, 3], [0, 1, 2, 3], until=61))
    assert not drive(job.records()).final()


def test_a_small_part_of_the_step_that_grows_on_one_rank_shows_beside_the_noise_of_the_rest_and_recovers() -> None:
    def fetched_s(rank: int, step: int, phase: Phase) -> float:
        return 0.3 if rank == 1 and 14 <= step < 44 and phase is Phase.DATA else 0.0

    job = SyntheticJob(ranks=2, steps=75, step_s=3.0, jitter=0.06, delays=[fetched_s])
    context = drive(job.records())
    finding = only(context)
    assert (finding.body["kind"], [s["rank"] for s in finding.body["suspects"]]) == ("rank_slow", [1])
    assert finding.body["suspects"][0]["where"]["phase"] == "data"
    assert steps_needed(job, context, 14, 1) <= 10
    assert [item.cleared for item in context.findings()].index(True) == len(context.findings()) - 1  # ends once


# --- ranks that get no CPU --------------------------------------------------------------------------------------------
def lost_s(rank: int, step: int, mean_s: float) -> float:
    """What a crowded node takes from this rank in this step: often nothing, sometimes much."""
    chance = random.Random(f"{rank}/{step}")
    return chance.expovariate(1.0 / (2.0 * mean_s)) if chance.random() < 0.5 else 0.0


def wait_at_once(rank: int, step: int, actions: list[Action]) -> list[Action]:
    return [replace(action, asynchronous=False) if isinstance(action, Call) else action for action in actions]


def crowded(mean_s: float, **settings: object) -> SyntheticJob:
    return SyntheticJob(
        edit=wait_at_once,
        delays=[lambda rank, step, phase: lost_s(rank, step, mean_s) if phase is Phase.FORWARD else 0.0],
        starved_ns=lambda rank, step: int(lost_s(rank, step, mean_s) * 1e9),
        **settings,  # type: ignore[arg-type]
    )


def test_time_without_a_cpu_hides_no_straggler_and_makes_none() -> None:
    for seed in range(3):
        slow = crowded(
            0.02, ranks=2, steps=60, step_s=0.1, seed=seed, slow=lambda rank, step: 1.3 if rank and step >= 30 else 1.0
        )
        context = drive(slow.records())
        finding = only(context)
        assert (finding.body["kind"], [s["rank"] for s in finding.body["suspects"]]) == ("rank_slow", [1])
        assert steps_needed(slow, context, 30, 1) <= 10
        assert not drive(crowded(0.02, ranks=3, steps=120, step_s=0.1, seed=seed).records()).final()


def test_a_second_of_bad_luck_on_a_crowded_node_names_nobody() -> None:
    """What a neighbour takes from a rank beside its turns on the CPU (caches, a lock's holder) is counted nowhere."""

    def uncounted_s(rank: int, step: int) -> float:
        return 0.032 if rank == 1 and 60 <= step < 68 else 0.0

    def job(mean_s: float) -> SyntheticJob:
        crowd = crowded(mean_s, ranks=4, steps=110, step_s=0.08)
        crowd.delays.append(lambda rank, step, phase: uncounted_s(rank, step) if phase is Phase.BACKWARD else 0.0)
        crowd.jitter = 0.12
        return crowd

    assert [finding.body["kind"] for finding in drive(job(0.0001).records()).final().values()] == ["rank_slow"]
    assert not drive(job(0.015).records()).final()


def test_waits_for_a_cpu_that_sleep_hides_make_nobody_slow_who_has_fewer_of_them() -> None:
    """Work to a beat makes up for waits for a CPU: taking them out of the others' work doubles a rank's excess."""

    def found(own_ms: float, starved_ms: float) -> int | None:
        chance = np.random.default_rng(5)
        self_ms, waits_ms = chance.normal(115.0, 4.0, (150, 3)), np.abs(chance.normal(10.0, 3.0, (150, 3)))
        self_ms[-24:, 2] += own_ms
        waits_ms[-24:, 2] += starved_ms
        times = StepTimes(
            ranks=np.arange(3),
            steps=np.arange(150),
            begin_ns=np.arange(150) * 121_000_000,
            duration_ns=np.full(150, 121_000_000),
            self_ns=(self_ms * 1e6).astype(np.int64),
            starved_ns=(np.maximum(waits_ms, 0.0) * 1e6).astype(np.int64),
            phase_self_ns=np.zeros((32, 3, len(Phase)), np.int64),
        )
        straggler = find_straggler(times)
        return straggler.rank if straggler else None

    assert found(own_ms=5.0, starved_ms=-8.0) is None
    assert found(own_ms=14.0, starved_ms=0.0) == 2


def test_waiting_for_a_cpu_while_the_device_works_costs_nothing() -> None:
    job = SyntheticJob(ranks=2, steps=80, starved_ns=lambda rank, step: 60_000_000 if not rank and step > 40 else 0)
    assert not drive(job.records()).final()


def test_a_rank_that_others_keep_from_its_cpu_is_told_when_it_lasts() -> None:
    def taken_s(rank: int, step: int) -> float:
        return 0.08 if rank == 1 and step >= 30 else 0.0

    def job(steps: int) -> SyntheticJob:
        return SyntheticJob(
            ranks=3,
            steps=steps,
            step_s=0.4,
            edit=wait_at_once,
            delays=[lambda rank, step, phase: taken_s(rank, step) if phase is Phase.FORWARD else 0.0],
            starved_ns=lambda rank, step: int(taken_s(rank, step) * 1e9),
        )

    assert not drive(job(45).records()).final()
    finding = only(drive(job(90).records()))
    assert (finding.body["kind"], [s["rank"] for s in finding.body["suspects"]]) == ("rank_slow", [1])
    (proof,) = [item for item in finding.body["evidence"] if item["signal"] == "kernel.run_delay"]
    assert "something else on node-0 takes the cores" in proof["shows"]


def test_a_reading_is_shared_with_the_steps_that_were_too_short_for_one() -> None:
    read = np.array([[-1, 8], [6, -1], [-1, -1], [-1, 10], [9, -1], [-1, -1]])
    shared = [[3, 8], [3, 3], [3, 3], [3, 3], [3, 0], [0, 0]]
    assert spread_readings(read).tolist() == shared


def test_a_second_slow_rank_soon_after_a_first_one_is_named_whose_phases_are_known_of_few_steps() -> None:
    """The steps of a fault that is over are taken out: those before it have lost their phases long since."""
    chance = np.random.default_rng(5)
    self_ms = chance.normal(100.0, 2.0, (90, 3))
    self_ms[-12:, 2] += 30.0
    for known in (0, 7, 12):
        phases_ns = np.zeros((known, 3, len(Phase)), np.int64)
        phases_ns[:, 2, Phase.FORWARD] = 30_000_000
        times = StepTimes(
            ranks=np.arange(3),
            steps=np.arange(90),
            begin_ns=np.arange(90) * 131_000_000,
            duration_ns=np.full(90, 131_000_000),
            self_ns=(self_ms * 1e6).astype(np.int64),
            starved_ns=np.zeros((90, 3), np.int64),
            phase_self_ns=phases_ns,
        )
        straggler = find_straggler(times)
        assert straggler is not None
        assert (straggler.rank, straggler.phase) == (2, Phase.FORWARD if known else -1)
