"""Drivers and GPUs that fail: nothing of it may end the collector, and what still answers is still told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.agents.collectors.conftest import MakePlayed, Start
from tests.played_gpu.collecting import Blocked, CollectingProcess, Raised, happenings_of, values_of
from tests.played_gpu.played import NvmlStatus, PlayedGpus, Profile
from whichrank.telemetry.vocabulary import EventName


def test_a_lost_gpu_stays_expected_and_the_others_go_on(played: PlayedGpus, start: Start) -> None:
    collector = start(played)
    collector.collect()
    played.lose(5)
    collected = collector.collect()
    (lost,) = happenings_of(collected, "gpu_lost")
    assert lost.name is EventName.DEVICE_EVENT
    assert lost.attributes["gpu_uuid"] == played.uuids[5]
    assert lost.attributes["pci_bus"] == played.pci_bus(5)
    assert (lost.attributes["gpu_index"], lost.attributes["why"]) == (5, "gpu_is_lost")
    for _ in range(2):
        others = {uuid for uuid in played.uuids if uuid != played.uuids[5]}
        assert set(values_of(collected, "hw.power")) == others
        ok = values_of(collected, "hw.status", hw__state="ok")
        assert ok == {uuid: float(uuid in others) for uuid in played.uuids}
        assert values_of(collected, "hw.status", hw__state="failed")[played.uuids[5]] == 1.0
        collected = collector.collect()
        assert not collected.happenings


def test_a_gpu_that_was_reset_is_back_within_a_minute(h100: PlayedGpus, start: Start) -> None:
    collector = start(h100)
    collector.collect()
    h100.lose(5)
    collector.collect()
    h100.bring_back(5)
    assert values_of(collector.collect(later_s=30), "hw.status", hw__state="ok")[h100.uuids[5]] == 0.0
    collected = collector.collect(later_s=61)
    assert [item.attributes["gpu_uuid"] for item in happenings_of(collected, "gpu_back")] == [h100.uuids[5]]
    assert len(values_of(collected, "hw.power")) == h100.gpus
    assert values_of(collected, "hw.status", hw__state="ok")[h100.uuids[5]] == 1.0


def test_while_a_gpu_is_lost_the_others_lose_nothing_by_the_retries(h100: PlayedGpus, start: Start) -> None:
    collector = start(h100)
    collector.collect()
    h100.lose(0)
    for minute in range(12):
        collected = collector.collect(later_s=61.0 * minute)
        assert len(values_of(collected, "hw.power")) == h100.gpus - 1
        assert len(happenings_of(collected, "gpu_lost")) == (minute == 0)
        assert len(values_of(collected, "hw.status", hw__state="ok")) == h100.gpus
        assert not collected.problems


def test_a_gpu_that_stays_lost_is_looked_for_less_and_less_often(h100: PlayedGpus, start: Start) -> None:
    collector = start(h100)
    collector.collect()
    h100.lose(0)
    minutes = list(range(1, 60))
    for minute in minutes:
        collector.collect(later_s=60.5 * minute)
    h100.bring_back(0)
    back = [minute for minute in range(60, 75) if happenings_of(collector.collect(later_s=60.5 * minute), "gpu_back")]
    assert len(back) == 1
    assert back[0] <= 70


def test_a_gpu_that_waits_for_a_reset_is_lost_too(h100: PlayedGpus, start: Start) -> None:
    collector = start(h100)
    collector.collect()
    h100.set(2, **{"utilization.gpu": NvmlStatus.RESET_REQUIRED})
    collected = collector.collect()
    assert [item.attributes["why"] for item in happenings_of(collected, "gpu_lost")] == ["reset_required"]
    assert values_of(collected, "hw.status", hw__state="failed")[h100.uuids[2]] == 1.0


def test_a_gpu_that_answers_nothing_beside_others_that_do(h100: PlayedGpus, start: Start) -> None:
    """The driver does not always say that a GPU is lost."""
    collector = start(h100)
    collector.collect()
    h100.set(2, lost=NvmlStatus.UNKNOWN)
    collected = collector.collect()
    assert [item.attributes["why"] for item in happenings_of(collected, "gpu_lost")] == ["no_answer"]
    assert values_of(collected, "hw.status", hw__state="failed")[h100.uuids[2]] == 1.0
    assert len(values_of(collected, "hw.power")) == h100.gpus - 1
    h100.bring_back(2)
    assert len(happenings_of(collector.collect(later_s=61), "gpu_back")) == 1


def test_a_single_gpu_in_trouble_is_told_once(make_played: MakePlayed, start: Start) -> None:
    played = make_played(Profile.A100)
    played.set_system(gpus=1)
    collector = start(played)
    collector.collect()
    played.set(0, lost=NvmlStatus.UNKNOWN)
    lines = [line for turn in range(4) for line in collector.collect(later_s=10.0 * turn).problems]
    assert len([line for line in lines if "the driver has gone" in line]) == 1


def test_a_gpu_lost_before_the_agent_came_is_named_by_the_kernel_module(
    h100: PlayedGpus, start: Start, tmp_path: Path
) -> None:
    proc = tmp_path / "proc"
    for gpu, uuid in enumerate(h100.uuids):
        folder = proc / "driver" / "nvidia" / "gpus" / h100.pci_bus(gpu)
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H100\nIRQ:   \t\t 40\nGPU UUID: \t {uuid}\n")
    h100.lose(6)
    collector = start(h100, proc)
    collected = collector.collect()
    (lost,) = happenings_of(collected, "gpu_lost")
    assert (lost.attributes["gpu_uuid"], lost.attributes["pci_bus"]) == (h100.uuids[6], h100.pci_bus(6))
    assert values_of(collected, "hw.status", hw__state="ok")[h100.uuids[6]] == 0.0
    h100.bring_back(6)
    assert len(happenings_of(collector.collect(later_s=61), "gpu_back")) == 1


def test_a_gpu_lost_before_and_unknown_to_the_kernel_is_told_by_its_number(h100: PlayedGpus, start: Start) -> None:
    h100.lose(6)
    collector = start(h100)
    collected = collector.collect()
    assert values_of(collected, "hw.status", hw__state="failed")["GPU 6"] == 1.0
    h100.bring_back(6)
    collected = collector.collect(later_s=61)
    assert len(happenings_of(collected, "gpu_back")) == 1
    assert values_of(collected, "hw.status", hw__state="ok") == dict.fromkeys(h100.uuids, 1.0)


def test_no_driver_is_one_line_and_tried_again_each_minute(h100: PlayedGpus, start: Start) -> None:
    h100.driver_gone()
    collector = start(h100)
    collected = collector.collect()
    assert list(collected.problems) == [
        "GPU: no values, NVIDIA's driver cannot be opened (Driver Not Loaded); tried again every 60 s"
    ]
    assert not collected.points
    assert not collected.blind  # no GPU is on the bus here
    h100.driver_back()
    assert not collector.collect(later_s=59).points
    collected = collector.collect(later_s=61)
    assert len(values_of(collected, "hw.power")) == h100.gpus


def test_without_its_driver_gpus_that_were_seen_are_not_seen_any_more(h100: PlayedGpus, start: Start) -> None:
    collector = start(h100)
    assert not collector.collect().blind
    h100.driver_gone()
    assert collector.collect().blind
    assert collector.collect(later_s=59).blind
    assert collector.wait(0.01).blind
    h100.driver_back()
    assert not collector.collect(later_s=130).blind


def test_no_library_at_all(tmp_path: Path) -> None:
    """A node without GPUs: one line, and no more."""
    with CollectingProcess({"LD_LIBRARY_PATH": ""}, tmp_path) as collector:
        collected = collector.collect()
        if collected.points:
            pytest.skip("this machine has GPUs")
        assert len(collected.problems) == 1
        assert "NVML Shared Library Not Found" in collected.problems[0]
        assert collector.collect(later_s=120).problems == []
        began = time.monotonic()
        collector.wait(0.3)
        assert time.monotonic() - began >= 0.3


def test_a_driver_loaded_anew_is_opened_anew(played: PlayedGpus, start: Start) -> None:
    collector = start(played)
    collector.collect()
    played.driver_back()
    gone = collector.collect()
    assert "GPU: the driver has gone, or was loaded anew; it is opened again" in gone.problems
    assert not happenings_of(gone, "gpu_lost")
    again = collector.collect(later_s=10)
    assert len(values_of(again, "hw.power")) == played.gpus
    assert values_of(again, "hw.status", hw__state="ok") == dict.fromkeys(played.uuids, 1.0)
    played.xid(1, 31)
    assert [item.attributes["code"] for item in collector.wait(5).happenings] == [31]


@pytest.mark.parametrize("status", [NvmlStatus.DRIVER_NOT_LOADED, NvmlStatus.UNINITIALIZED, NvmlStatus.UNKNOWN])
def test_a_driver_that_goes_is_no_lost_gpu(h100: PlayedGpus, start: Start, status: NvmlStatus) -> None:
    collector = start(h100)
    collector.collect()
    h100.driver_gone(status)
    collected = collector.collect()
    assert any("the driver has gone" in line for line in collected.problems)
    assert not collected.points
    assert not happenings_of(collected, "gpu_lost")
    assert not collector.collect(later_s=10).points
    h100.driver_back()
    assert len(values_of(collector.collect(later_s=71), "hw.power")) == h100.gpus


def test_a_new_driver_version_is_a_change(h100: PlayedGpus, start: Start) -> None:
    collector = start(h100)
    collector.collect()
    h100.set_system(driver_version="550.127.08")
    h100.driver_back()
    collector.collect()
    (change,) = [item for item in collector.collect(later_s=10).happenings if item.name is EventName.CHANGE]
    assert change.attributes == {"what": "nvidia_driver", "old": "550.90.07", "new": "550.127.08", "where": "node"}


def test_a_replaced_driver_asks_for_a_new_process(h100: PlayedGpus, start: Start) -> None:
    """The library that is loaded stays the old one, whatever lies on disk."""
    collector = start(h100)
    collector.collect()
    h100.driver_gone(NvmlStatus.LIB_RM_VERSION_MISMATCH)
    collector.collect()
    with pytest.raises(Raised, match=r"DriverReplaced: .* a new process is needed"):
        collector.collect(later_s=10)


def test_a_driver_that_hangs_holds_this_process_only(played: PlayedGpus, start: Start) -> None:
    collector = start(played)
    collector.collect()
    played.block(gpu=3)
    with pytest.raises(Blocked):
        collector.collect(timeout_s=1.0)
    with pytest.raises(Blocked):
        start(played).collect(timeout_s=1.0)
    played.unblock()
    assert len(values_of(collector.collected(), "hw.power")) == played.gpus
    assert len(values_of(collector.collect(), "hw.power")) == played.gpus


def test_a_call_that_comes_back_late_is_told_as_if_nothing_was(h100: PlayedGpus, start: Start) -> None:
    collector = start(h100)
    collector.collect()
    h100.block(0.5)
    began = time.monotonic()
    collected = collector.collect()
    assert 0.4 < time.monotonic() - began < 5
    assert len(values_of(collected, "hw.power")) == h100.gpus


def test_a_hanging_collector_can_be_left_behind(h100: PlayedGpus, start: Start) -> None:
    h100.block()
    with CollectingProcess(h100.environment()) as collector:
        with pytest.raises(Blocked):
            collector.collect(timeout_s=0.5)
        collector.process.kill()
        assert collector.process.wait(timeout=5) == -9
