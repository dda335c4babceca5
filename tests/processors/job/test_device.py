"""Groups on devices: hosts run ahead, so only what is enqueued, started and completed tells who stands in what."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.processors.job.synthetic_device_job import DeviceJob
from tests.processors.job.synthetic_job import FOREVER, WALL_NS, MemoryContext, drive
from whichrank.telemetry.records import Event, Finding
from whichrank.telemetry.vocabulary import EventName, Op


def only(context: MemoryContext) -> Finding:
    found = list(context.final().values())
    assert len(found) == 1, [finding.key for finding in found]
    return found[0]


def suspects(finding: Finding) -> list[int]:
    return [item["rank"] for item in finding.body["suspects"]]


def from_step(step: int, guilty: int, value: float, usual: float) -> Callable[[int, int], float]:
    return lambda rank, now: value if rank == guilty and now >= step else usual


@pytest.mark.parametrize("step_s", [0.05, 0.5, 4.0])
@pytest.mark.parametrize("timing", [True, False])
def test_a_healthy_job_whose_hosts_run_ahead_says_nothing(step_s: float, timing: bool) -> None:
    for seed in range(2):
        job = DeviceJob(step_s=step_s, timing=timing, seed=seed, steps=min(400, int(120 / step_s)))
        assert not drive(job.records()).final()


@pytest.mark.parametrize("timing", [True, False])
@pytest.mark.parametrize("step_s", [0.1, 1.0, 3.0])
def test_a_host_that_does_not_launch_is_named(step_s: float, timing: bool) -> None:
    job = DeviceJob(host=from_step(20, 2, FOREVER, 0.0), step_s=step_s, timing=timing)
    finding = only(drive(job.records()))
    assert (finding.body["kind"], suspects(finding)) == ("rank_not_entered", [2])
    assert finding.body["first_bad"]["step"] in (19, 20)  # it is between its steps
    assert finding.body["scope"] == "rank"


@pytest.mark.parametrize("step_s", [0.1, 1.0, 3.0])
def test_a_kernel_that_does_not_end_is_that_ranks_though_its_host_went_on(step_s: float) -> None:
    job = DeviceJob(kernel=from_step(20, 1, FOREVER, 1.0), step_s=step_s)
    finding = only(drive(job.records()))
    assert (finding.body["kind"], suspects(finding)) == ("rank_not_entered", [1])
    assert finding.body["first_bad"]["step"] == 20
    began_ns = max(call.done for call in job.calls[1] if call.step == 19)
    assert finding.body["times"]["onset"] == pytest.approx((WALL_NS + began_ns) / 1e9, abs=0.3)
    assert "has not begun" in finding.body["evidence"][0]["shows"]
    assert "ranks 0,2-3" in finding.body["ruled_out"][0]["who"]


def test_all_inside_and_no_end_is_nobodys() -> None:
    finding = only(drive(DeviceJob(stuck=(20, 1)).records()))
    assert (finding.body["kind"], finding.body["bucket"]) == ("collective_stalled", "communication_hang")
    assert (suspects(finding), finding.body["scope"]) == ([], "link")
    assert finding.body["first_bad"]["step"] == 20
    assert finding.body["first_bad"]["sequence"] == 42


def test_data_that_comes_late_to_some_is_no_hang() -> None:
    """Their peers have left the collective, so what does not end is no kernel of theirs: a switch is congested."""
    late = DeviceJob(tail=lambda rank, step: 7.0 if step == 20 and rank in (1, 2) else 0.0)
    kinds = [finding.body["kind"] for finding in drive(late.records()).final().values()]
    assert "rank_not_entered" not in kinds
    finding = only(drive(DeviceJob(tail=from_step(20, 2, FOREVER, 0.0), after_s=20.0).records()))
    assert (finding.body["kind"], suspects(finding)) == ("rank_not_entered", [2])  # it never came
    told_s, onset_s = finding.body["times"]["detected"], finding.body["times"]["onset"]
    assert 10.0 <= told_s - onset_s < 14.0


@pytest.mark.parametrize("kind", ["kernel", "link"])
def test_without_start_times_a_kernel_and_a_link_look_alike_and_nobody_is_named(kind: str) -> None:
    job = DeviceJob(timing=False, after_s=50.0)
    if kind == "kernel":
        job.kernel = from_step(20, 1, FOREVER, 1.0)
    else:
        job.stuck = (20, 0)
    finding = only(drive(job.records()))
    assert (finding.body["kind"], suspects(finding), finding.body["scope"]) == ("collective_stalled", [], "job")
    assert "TORCH_NCCL_ENABLE_TIMING" in finding.body["evidence"][0]["shows"]


def test_where_no_end_is_ever_told_the_lagging_host_is_still_named() -> None:
    job = DeviceJob(told=False, timing=False, host=from_step(20, 3, FOREVER, 0.0))
    assert suspects(only(drive(job.records()))) == [3]
    assert not drive(DeviceJob(told=False, timing=False).records()).final()


def test_a_long_kernel_on_all_devices_is_no_hang() -> None:
    job = DeviceJob(kernel=lambda rank, step: 25.0 if step % 10 == 9 else 1.0)
    assert not drive(job.records()).final()


def test_a_kernel_as_long_as_one_seen_before_is_no_hang() -> None:
    job = DeviceJob(kernel=lambda rank, step: 2.4 if rank == 0 and step % 7 == 6 else 1.0, steps=60, step_s=2.0)
    findings = drive(job.records()).final().values()
    assert all(finding.body["kind"] != "rank_not_entered" for finding in findings)


def test_a_skipped_collective_is_told_by_what_was_launched() -> None:
    def edit(rank: int, step: int, calls: list[tuple[Op, int]]) -> list[tuple[Op, int]]:
        return calls[:1] if (rank, step) == (2, 20) else calls

    finding = only(drive(DeviceJob(edit=edit).records()))
    assert (finding.body["kind"], suspects(finding)) == ("desync", [2])


@pytest.mark.parametrize("step_s", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("guilty", [0, 3])
def test_a_device_that_is_slow_is_named_by_the_time_it_spends_outside(step_s: float, guilty: int) -> None:
    job = DeviceJob(kernel=from_step(30, guilty, 1.3, 1.0), step_s=step_s, steps=70)
    found = [finding for finding in drive(job.records()).final().values() if finding.body["kind"] == "rank_slow"]
    assert [suspects(finding) for finding in found] == [[guilty]]
    assert 28 <= found[0].body["first_bad"]["step"] <= 33
    assert "device" in found[0].body["evidence"][0]["shows"]


@pytest.mark.parametrize(("step_s", "onset", "ends"), [(0.07, 120, 420), (0.12, 80, 240)])
def test_where_steps_are_as_short_as_looks_their_shares_name_the_late_device(
    step_s: float, onset: int, ends: int
) -> None:
    job = DeviceJob(
        kernel=lambda rank, step: 1.3 if rank == 2 and onset <= step < ends else 1.0,
        step_s=step_s,
        steps=ends + 80,
        jitter=0.04,
    )
    context = drive(job.records())
    finding = only(context)
    assert (finding.body["kind"], suspects(finding)) == ("rank_slow", [2])
    assert abs(finding.body["first_bad"]["step"] - onset) <= 1
    assert "ranks 0-1,3 were found waiting" in finding.body["evidence"][0]["shows"]
    assert [item.cleared for item in context.findings()] == [False, True]


def test_devices_that_all_become_slower_at_short_steps_are_nobodys() -> None:
    job = DeviceJob(kernel=lambda rank, step: 1.3 if step >= 120 else 1.0, step_s=0.12, steps=300)
    assert all(not suspects(finding) for finding in drive(job.records()).final().values())


@pytest.mark.parametrize("seed", range(1, 5))
def test_looks_that_keep_time_with_the_steps_make_nobody_slow(seed: int) -> None:
    """Rank 2's stands are seen no longer: it seems to work all the time, but the steps are as long as before."""
    job = DeviceJob(
        kernel=lambda rank, step: 1.14 if rank == 0 else 1.0,
        misses=lambda rank, step: rank == 2 and step >= 60,
        step_s=(0.5 - 0.002) / 1.14,
        start_s=100.05,
        jitter=0.001,
        steps=120,
        seed=seed,
    )
    assert list(drive(job.records()).final()) == []


def test_without_start_times_no_device_is_called_slow() -> None:
    job = DeviceJob(kernel=from_step(30, 1, 1.3, 1.0), timing=False, steps=80)
    assert all(not finding.body["suspects"] for finding in drive(job.records()).final().values())


def test_batches_change_nothing() -> None:
    draw = random.Random(3)
    late = DeviceJob(kernel=from_step(60, 1, 1.4, 1.0), step_s=0.11, steps=180, ranks=3, after_s=1.0)
    for job in (DeviceJob(kernel=from_step(12, 1, FOREVER, 1.0), steps=20), DeviceJob(stuck=(9, 0), steps=16), late):
        records = job.records()
        plain = [item.body for item in drive(records).findings()]
        assert plain
        assert [
            item.body for item in drive(records, batches=[draw.randint(1, 9) for _ in range(50)]).findings()
        ] == plain
        assert [item.body for item in drive(records, fresh_each_time=True).findings()] == plain


@pytest.mark.parametrize("fault", ["host", "kernel"])
def test_a_watchdog_that_comes_first_ends_all_and_the_one_who_did_not_come_is_named(fault: str) -> None:
    """Time-out before patience: all abort, innocents first."""
    job = DeviceJob(step_s=4.0, steps=12, after_s=12.0, timeout_s=12.0)
    if fault == "host":
        job.host = from_step(8, 2, FOREVER, 0.0)
    else:
        job.kernel = from_step(8, 2, FOREVER, 1.0)
    records = job.records()
    started = next(record.payload for record in records if isinstance(record.payload, Event))
    quiet = max(call.done for mine in job.calls for call in mine if call.done != FOREVER)
    told = int(quiet + WALL_NS + 9.0e9)
    ends = []
    for place, rank in enumerate((0, 1, 3, 2)):
        at = told + place * 40_000_000
        attributes = {"signal": 6, "exit_code": -1, "sender_pid": 4000 + rank}
        if rank == 2:  # torchrun clears up
            attributes |= {"signal": 15, "sender_pid": 99}
        event = Event(
            name=EventName.RANK_EXIT,
            identity=replace(started.identity, rank=rank),
            time_ns=at,
            mono_ns=at - WALL_NS,
            attributes=attributes,
        )
        ends.append(replace(records[0], stamp_ns=at, payload=event))
    finding = only(drive([record for record in records if record.stamp_ns < told] + ends))
    assert (finding.body["kind"], suspects(finding)) == ("rank_not_entered", [2])
    assert {"0", "1", "3"} <= {item["ranks"] for item in finding.body["ruled_out"]}


@pytest.mark.parametrize("timing", [True, False])
def test_what_all_devices_need_longer_for_is_no_slower_network(timing: bool) -> None:
    """From launch to end is mostly the host's lead, which grows with the steps: no part is more than the whole."""
    job = DeviceJob(kernel=lambda rank, step: 1.0 if step < 70 else 1.4, step_s=1.0, steps=130, timing=timing, ahead=4)
    finding = only(drive(job.records()))
    assert finding.body["kind"] == "slow_together"
    (words,) = (each["shows"] for each in finding.body["evidence"] if each["signal"] == "steps.self_time")
    assert "a slower network" not in words
    assert ("own work" in words) == timing
    assert ("is not known: nobody tells when devices begin" in words) == (not timing)
