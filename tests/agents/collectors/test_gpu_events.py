"""Xid errors and their like: told as they come, of the right GPU, also beside a GPU that is lost."""

from __future__ import annotations

import statistics
import time

from tests.agents.collectors.conftest import MakePlayed, Start
from tests.played_gpu.collecting import happenings_of
from tests.played_gpu.played import EventType, NvmlStatus, PlayedGpus, Profile
from whichrank.telemetry.vocabulary import EventName


def test_an_xid_is_told_as_it_comes(played: PlayedGpus, start: Start) -> None:
    """50 of them, each while the collector waits."""
    collector = start(played)
    collector.collect()
    latencies_s = []
    for turn in range(50):
        gpu, code = turn % played.gpus, 30 + turn
        collector.start_wait(20)
        time.sleep(0.01)
        came_ns = time.time_ns()
        played.xid(gpu, code)
        (xid,) = collector.collected().happenings
        latencies_s.append((xid.time_ns - came_ns) / 1e9)
        assert xid.name is EventName.DEVICE_EVENT
        assert xid.attributes == {
            "event": "xid",
            "source": "nvml",
            "gpu_uuid": played.uuids[gpu],
            "gpu_index": gpu,
            "pci_bus": played.pci_bus(gpu),
            "code": code,
        }
    print(f"Xid told after: median {statistics.median(latencies_s) * 1e3:.1f} ms, most {max(latencies_s) * 1e3:.1f} ms")
    assert statistics.median(latencies_s) < 0.05
    assert max(latencies_s) < 0.5


def test_a_wait_without_news_takes_its_time_and_no_more_cpu(h100: PlayedGpus, start: Start) -> None:
    collector = start(h100)
    collector.collect()
    before = collector.cost()
    began = time.monotonic()
    assert not collector.wait(1.0).happenings
    assert 1.0 <= time.monotonic() - began < 3
    assert collector.cost().cpu_s - before.cpu_s < 0.05


def test_xids_between_two_collections_are_told_by_the_second_in_their_order(h100: PlayedGpus, start: Start) -> None:
    collector = start(h100)
    collector.collect()
    for code in (31, 45, 45, 13):
        h100.xid(2, code)
    collected = collector.collect()
    assert [item.attributes["code"] for item in happenings_of(collected, "xid")] == [31, 45, 45, 13]
    assert not collector.collect().happenings


def test_an_xid_of_before_the_agent_is_not_told(h100: PlayedGpus, start: Start) -> None:
    h100.xid(0, 79)
    collector = start(h100)
    assert not collector.collect().happenings
    assert not collector.wait(0.1).happenings


def test_a_gpu_that_falls_off_the_bus_is_told_while_waiting(played: PlayedGpus, start: Start) -> None:
    """Xid and loss at once, before the next collection; and what the others have to tell afterwards as well."""
    collector = start(played)
    collector.collect()
    collector.start_wait(20)
    time.sleep(0.05)
    played.xid(4, 79)
    played.lose(4)
    told = [(item.attributes["event"], item.attributes["gpu_index"]) for item in collector.collected().happenings]
    if ("gpu_lost", 4) not in told:
        told += [(item.attributes["event"], item.attributes["gpu_index"]) for item in collector.wait(2).happenings]
    assert told == [("xid", 4), ("gpu_lost", 4)]
    played.xid(6, 74)
    assert [item.attributes["code"] for item in collector.wait(5).happenings] == [74]


def test_a_lost_gpu_does_not_make_the_waits_spin(h100: PlayedGpus, start: Start) -> None:
    """The driver ends every wait of a set with a lost GPU at once."""
    collector = start(h100)
    collector.collect()
    h100.lose(4)
    collector.wait(0.1)
    before = collector.cost()
    began = time.monotonic()
    for _ in range(3):
        collector.wait(0.3)
    assert time.monotonic() - began >= 0.9
    assert collector.cost().cpu_s - before.cpu_s < 0.1


def test_an_xid_in_a_mig_instance_names_the_instance(h100: PlayedGpus, start: Start) -> None:
    uuids = h100.split(1, 3)
    collector = start(h100)
    collector.collect()
    with (h100.folder / "events").open("a") as events:
        events.write(f"1 {EventType.XID.value} 43 2 0\n")
    (xid,) = collector.wait(5).happenings
    assert (xid.attributes["gpu_instance"], xid.attributes["mig"]) == (2, uuids[1])
    assert xid.attributes["gpu_uuid"] == h100.uuids[1]


def test_what_newer_drivers_tell_is_told(make_played: MakePlayed, start: Start) -> None:
    played = make_played(Profile.B200)
    collector = start(played)
    collector.collect()
    played.event(3, EventType.RECOVERY_ACTION, 2)
    played.event(3, EventType.ECC_CORRECTED)  # comes by the thousand: not asked for
    (told,) = collector.wait(5).happenings
    assert (told.attributes["event"], told.attributes["code"]) == ("recovery_action", 2)
    assert not collector.wait(0.1).happenings


def test_a_gpu_without_events_is_named_and_the_others_are_heard(h100: PlayedGpus, start: Start) -> None:
    h100.set(2, **{"events.supported": NvmlStatus.NOT_SUPPORTED})
    collector = start(h100)
    problems = collector.collect().problems
    assert "GPU: Xid events of GPU 2 (Not Supported) cannot be heard of" in problems
    h100.xid(2, 31)
    h100.xid(3, 31)
    assert [item.attributes["gpu_index"] for item in collector.wait(5).happenings] == [3]
