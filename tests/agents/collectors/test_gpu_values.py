"""Every value that the collector tells is the one in the script, GPU by GPU, in all three profiles."""

from __future__ import annotations

import random

import pynvml
import pytest
from opentelemetry.semconv._incubating.attributes import hw_attributes
from opentelemetry.semconv._incubating.metrics import hw_metrics

from tests.agents.collectors.conftest import Start
from tests.played_gpu.clients import OLDEST_BINDING, client
from tests.played_gpu.collecting import CollectingProcess, attributes_by_metric, values_of
from tests.played_gpu.played import THROTTLE_BITS, NvmlStatus, PlayedGpus, Profile
from whichrank.agents.collectors.base.collector import Collected
from whichrank.telemetry.node_metrics import node_metrics

#: Key of the script, metric, labels, and what one in the script is in the metric's unit.
VALUES: tuple[tuple[str, str, dict[str, str], float], ...] = (
    ("utilization.gpu", "hw.gpu.utilization", {"hw.gpu.task": "general"}, 0.01),
    ("utilization.encoder", "hw.gpu.utilization", {"hw.gpu.task": "encoder"}, 0.01),
    ("utilization.decoder", "hw.gpu.utilization", {"hw.gpu.task": "decoder"}, 0.01),
    ("utilization.memory", "whichrank.gpu.memory.busy", {}, 0.01),
    ("memory.used", "hw.gpu.memory.usage", {}, 1),
    ("memory.total", "hw.gpu.memory.limit", {}, 1),
    ("memory.reserved", "whichrank.gpu.memory.reserved", {}, 1),
    ("clock.sm", "whichrank.gpu.speed", {"whichrank.gpu.clock": "sm"}, 1e6),
    ("clock.memory", "whichrank.gpu.speed", {"whichrank.gpu.clock": "memory"}, 1e6),
    ("clock.sm.max", "whichrank.gpu.speed.limit", {"whichrank.gpu.clock": "sm", "hw.limit_type": "max"}, 1e6),
    ("clock.memory.max", "whichrank.gpu.speed.limit", {"whichrank.gpu.clock": "memory", "hw.limit_type": "max"}, 1e6),
    ("clock.sm.app", "whichrank.gpu.speed.limit", {"whichrank.gpu.clock": "sm", "hw.limit_type": "application"}, 1e6),
    ("pstate", "whichrank.gpu.pstate", {}, 1),
    ("power.usage", "hw.power", {}, 1e-3),
    ("power.limit", "whichrank.gpu.power.limit", {"hw.limit_type": "set"}, 1e-3),
    ("power.limit.enforced", "whichrank.gpu.power.limit", {"hw.limit_type": "enforced"}, 1e-3),
    ("power.limit.default", "whichrank.gpu.power.limit", {"hw.limit_type": "default"}, 1e-3),
    ("power.limit.min", "whichrank.gpu.power.limit", {"hw.limit_type": "min"}, 1e-3),
    ("power.limit.max", "whichrank.gpu.power.limit", {"hw.limit_type": "max"}, 1e-3),
    ("energy.mj", "hw.energy", {}, 1e-3),
    ("temperature.gpu", "hw.temperature", {"hw.sensor_location": "gpu"}, 1),
    ("temperature.memory", "hw.temperature", {"hw.sensor_location": "memory"}, 1),
    ("temperature.shutdown", "hw.temperature.limit", {"hw.limit_type": "critical"}, 1),
    ("temperature.slowdown", "hw.temperature.limit", {"hw.limit_type": "throttled"}, 1),
    ("temperature.gpu.max", "hw.temperature.limit", {"hw.limit_type": "max", "hw.sensor_location": "gpu"}, 1),
    ("temperature.memory.max", "hw.temperature.limit", {"hw.limit_type": "max", "hw.sensor_location": "memory"}, 1),
    ("temperature.margin", "whichrank.gpu.temperature.margin", {}, 1),
    ("ecc.volatile.corrected", "hw.errors", {"error.type": "corrected"}, 1),
    ("ecc.volatile.uncorrected", "hw.errors", {"error.type": "uncorrected"}, 1),
    *(
        (
            f"ecc.{counter}.{error}.{place}",
            "whichrank.gpu.ecc.errors",
            {"error.type": error, "whichrank.gpu.since": since, "whichrank.gpu.memory": place},
            1.0,
        )
        for counter, since in (("volatile", "driver_load"), ("aggregate", "manufacture"))
        for error in ("corrected", "uncorrected")
        for place in ("dram", "sram")
    ),
    ("ecc.mode", "whichrank.gpu.ecc.mode", {}, 1),
    ("ecc.sram.threshold_exceeded", "whichrank.gpu.ecc.sram_threshold_exceeded", {}, 1),
    ("remapped.corrected", "whichrank.gpu.remapped_rows", {"error.type": "corrected"}, 1),
    ("remapped.uncorrected", "whichrank.gpu.remapped_rows", {"error.type": "uncorrected"}, 1),
    ("remapped.pending", "whichrank.gpu.remapped_rows.pending", {}, 1),
    ("remapped.failure", "whichrank.gpu.remapped_rows.failure", {}, 1),
    ("recovery_action", "whichrank.gpu.recovery_action", {}, 1),
    ("pcie.width", "whichrank.gpu.pcie.lanes", {}, 1),
    ("pcie.width.max", "whichrank.gpu.pcie.lanes.limit", {}, 1),
    ("pcie.generation", "whichrank.gpu.pcie.generation", {}, 1),
    ("pcie.generation.max", "whichrank.gpu.pcie.generation.limit", {}, 1),
    ("pcie.replays", "hw.errors", {"error.type": "pcie_replay"}, 1),
    ("field.173", "hw.errors", {"error.type": "pcie_corrected"}, 1),
    ("field.180", "hw.errors", {"error.type": "pcie_fatal"}, 1),
    ("field.75", "whichrank.gpu.throttled.time", {"whichrank.gpu.reason": "thermal"}, 1e-9),
    ("field.271", "whichrank.gpu.throttled.time", {"whichrank.gpu.reason": "hw_power_brake_slowdown"}, 1e-9),
    ("persistence", "whichrank.gpu.persistence_mode", {}, 1),
    ("compute_mode", "whichrank.gpu.compute_mode", {}, 1),
)
#: What only some GPUs have, so that the table cannot pass by finding nothing.
ABSENT = {
    Profile.A100: {"temperature.margin", "ecc.sram.threshold_exceeded", "recovery_action"}
    | {"field.173", "field.180", "field.271"},
    Profile.H100: {"temperature.margin", "recovery_action", "field.271"},
    Profile.B200: {"clock.sm.app"}
    | {f"temperature.{which}" for which in ("shutdown", "slowdown", "gpu.max", "memory.max")},
}


#: What only newer releases of nvidia-ml-py can ask for.
CALLS = {
    "temperature.margin": "nvmlDeviceGetMarginTemperature",
    "ecc.sram.threshold_exceeded": "nvmlDeviceGetSramEccErrorStatus",
}


def _can_be_asked(key: str) -> bool:
    return key not in CALLS or hasattr(pynvml, CALLS[key])


def _as_words(labels: dict[str, str]) -> dict[str, str]:
    return {name.replace(".", "__"): value for name, value in labels.items()}


def test_values_are_those_of_the_script(played: PlayedGpus, start: Start) -> None:
    """Each GPU has numbers of its own for every key."""
    draw = random.Random(11)
    expected: dict[str, list[int]] = {}
    present = [row for row in VALUES if row[0] not in ABSENT[played.profile] and _can_be_asked(row[0])]
    for gpu in range(played.gpus):
        numbers = {key: draw.randrange(1, 100) for key, *_ in present}
        numbers |= {
            "memory.total": 80 << 30,
            "memory.reserved": draw.randrange(1 << 30),
            "energy.mj": draw.randrange(2**50),
        }
        numbers["memory.used"] = draw.randrange(70 << 30)
        played.set(gpu, **numbers)
        for key, number in numbers.items():
            expected.setdefault(key, []).append(number)
    collected = start(played).collect()
    for key, metric, labels, scale in present:
        told = values_of(collected, metric, **_as_words(labels))
        wanted = dict(zip(played.uuids, (number * scale for number in expected[key]), strict=True))
        assert told == pytest.approx(wanted, rel=1e-12), f"{key} as {metric} {labels}"


def test_what_a_profile_does_not_have_is_absent_and_told_in_one_line(played: PlayedGpus, start: Start) -> None:
    collector = start(played)
    collected = collector.collect()
    for key, metric, labels, _ in VALUES:
        if key in ABSENT[played.profile]:
            assert not values_of(collected, metric, **_as_words(labels)), key
    assert len(collected.problems) == 1
    assert "does not tell" in collected.problems[0]
    assert "retired" in collected.problems[0]
    assert collector.collect().problems == []


def test_points_are_as_they_are_declared(played: PlayedGpus, start: Start) -> None:
    """Of all three profiles, with every NVLink in trouble and a process on a GPU."""
    played.attach(1, 0)
    played.set(0, **{"nvlink.3.symbol" if played.profile is Profile.B200 else "nvlink.3.crc_flit": 7})
    collector = start(played)
    points = list(collector.collect().points)
    played.link_down(0, 3)
    points += collector.collect().points
    known = node_metrics()
    for name, seen in attributes_by_metric(points).items():
        assert seen == {frozenset(known[name].attributes)}, name
    assert {"whichrank.gpu.nvlink.up", "whichrank.gpu.nvlink.link.errors"} <= {point.name for point in points}


def test_names_are_those_of_opentelemetry() -> None:
    """Where a name is of its ``hw`` namespace, its unit and kind are too."""
    conventions = {
        getattr(hw_metrics, constant): creator
        for constant in vars(hw_metrics)
        if constant.startswith("HW_") and (creator := getattr(hw_metrics, f"create_{constant.lower()}", None))
    }
    attributes = {getattr(hw_attributes, name) for name in vars(hw_attributes) if name.startswith("HW_")}
    kinds = {
        "gauge": "create_observable_gauge",
        "counter": "create_counter",
        "up_down_counter": "create_up_down_counter",
    }

    class Meter:
        def __init__(self) -> None:
            self.made: tuple[str, str] = ("", "")

        def __getattr__(self, kind: str) -> object:
            def create(name: str, *, unit: str, **_: object) -> None:
                self.made = (kind, unit)

            return create

    ours = [metric for metric in node_metrics().values() if metric.name.startswith("hw.")]
    assert len(ours) >= 11
    for metric in ours:
        meter, creator = Meter(), conventions[metric.name]
        creator(meter, None) if metric.instrument.value == "gauge" else creator(meter)
        assert meter.made == (kinds[metric.instrument.value], metric.unit), metric.name
        assert {name for name in metric.attributes if name.startswith("hw.")} <= attributes, metric.name


@pytest.mark.parametrize("reason", THROTTLE_BITS)
def test_throttle_reasons_in_words(h100: PlayedGpus, start: Start, reason: str) -> None:
    collector = start(h100)
    h100.throttle(4, reason)
    collected = collector.collect()
    told = {
        (point.attributes["hw.id"], point.attributes["whichrank.gpu.reason"])
        for point in collected.points
        if point.name == "whichrank.gpu.throttled" and point.value
    }
    assert told == {(h100.uuids[4], reason)}
    speeds = values_of(collected, "whichrank.gpu.speed", whichrank__gpu__clock="sm")
    assert speeds[h100.uuids[4]] == 585e6
    h100.throttle(4)
    assert not any(point.value for point in collector.collect().points if point.name == "whichrank.gpu.throttled")


def test_a_refused_value_costs_that_value_of_that_gpu_only(played: PlayedGpus, start: Start) -> None:
    before = start(played).collect()
    played.set(2, **{"power.usage": NvmlStatus.NO_PERMISSION, "temperature.gpu": NvmlStatus.NOT_SUPPORTED})
    collector = start(played)
    after = collector.collect()
    gone = {("hw.power", played.uuids[2]), ("hw.temperature", played.uuids[2])}
    missing = [
        point
        for point in before.points
        if not any(other.name == point.name and other.attributes == point.attributes for other in after.points)
    ]
    assert {(point.name, point.attributes["hw.id"]) for point in missing} == gone
    assert len(missing) == 2
    assert "power draw (Insufficient Permissions)" in after.problems[0]
    assert collector.collect().problems == []


def test_text_that_is_none_costs_that_text_only(h100: PlayedGpus, start: Start) -> None:
    """A damaged board memory."""
    script = (h100.folder / "script").read_bytes()
    damaged = script.replace(f"2/serial {h100.value(2, 'serial')}".encode(), b"2/serial \xff\xfe\x80garbage")
    assert damaged != script
    (h100.folder / "script").write_bytes(damaged)
    serials = {
        point.attributes["hw.id"]: point.attributes["hw.serial_number"]
        for point in start(h100).collect().points
        if point.name == "whichrank.gpu.info"
    }
    assert serials == {uuid: h100.value(gpu, "serial") * (gpu != 2) for gpu, uuid in enumerate(h100.uuids)}


def test_the_oldest_binding_tells_the_same_but_for_two_values(played: PlayedGpus) -> None:
    tools = client(OLDEST_BINDING)
    if tools is None:
        pytest.skip(f"{OLDEST_BINDING} cannot be installed here")
    (packages,) = tools.parent.glob("lib/python*/site-packages")
    with CollectingProcess(played.environment()) as collector:
        newest = collector.collect()
    with CollectingProcess({**played.environment(), "PYTHONPATH": str(packages)}) as collector:
        oldest = collector.collect()
    only_newer = {"whichrank.gpu.temperature.margin", "whichrank.gpu.ecc.sram_threshold_exceeded"}
    expected = {key: value for key, value in _by_labels(newest).items() if key[0] not in only_newer}
    assert _by_labels(oldest) == expected
    assert "a newer one has" in oldest.problems[0]


def test_a_driver_that_refuses_a_batch_for_one_field(played: PlayedGpus, start: Start) -> None:
    """Then each field is asked for by itself, once; the same values come of it."""
    before = start(played).collect()
    played.set_system(strict_fields=1)
    collector = start(played)
    after = collector.collect()
    assert _by_labels(after) == _by_labels(before)
    assert after.problems == before.problems
    slow = {point.name for point in collector.collect(later_s=61).points}
    assert {point.name for point in before.points} == slow


def _by_labels(collected: Collected) -> dict[tuple[str, frozenset[tuple[str, object]]], float]:
    return {(point.name, frozenset(point.attributes.items())): point.value for point in collected.points}


def test_an_error_that_passes_costs_one_collection(h100: PlayedGpus, start: Start) -> None:
    collector = start(h100)
    collector.collect()
    h100.set(1, **{"power.usage": NvmlStatus.UNKNOWN})
    collected = collector.collect()
    assert h100.uuids[1] not in values_of(collected, "hw.power")
    assert list(collected.problems) == ["GPU: no power draw: Unknown Error"]
    h100.set(1, **{"power.usage": 123000})
    assert values_of(collector.collect(), "hw.power")[h100.uuids[1]] == 123.0


def test_slow_values_come_once_a_minute(h100: PlayedGpus, start: Start) -> None:
    collector = start(h100)
    assert values_of(collector.collect(), "whichrank.gpu.info")
    assert not values_of(collector.collect(later_s=50), "whichrank.gpu.info")
    assert len(values_of(collector.collect(later_s=61), "whichrank.gpu.info")) == h100.gpus


def test_who_each_gpu_is(played: PlayedGpus, start: Start) -> None:
    """As the kernel log and sysfs write its place, as nvidia-smi writes the rest."""
    points = [point for point in start(played).collect().points if point.name == "whichrank.gpu.info"]
    for gpu, point in enumerate(points):
        assert point.attributes["whichrank.gpu.pci_bus"] == played.pci_bus(gpu)
        assert point.attributes["hw.id"] == played.uuids[gpu]
        assert point.attributes["hw.model"] == played.value(gpu, "name")
        assert point.attributes["hw.serial_number"] == played.value(gpu, "serial")
        assert point.attributes["hw.firmware_version"] == played.value(gpu, "vbios")
    assert len(points) == played.gpus


def test_nvlink_errors_are_told_by_link_and_in_sum(played: PlayedGpus, start: Start) -> None:
    word = "symbol" if played.profile is Profile.B200 else "crc_flit"
    played.set(5, **{f"nvlink.2.{word}": 40, f"nvlink.9.{word}": 2})
    collected = start(played).collect()
    sums = values_of(collected, "whichrank.gpu.nvlink.errors", error__type=word)
    assert sums == {uuid: 42.0 if uuid == played.uuids[5] else 0.0 for uuid in played.uuids}
    by_link = {
        (point.attributes["hw.id"], point.attributes["whichrank.gpu.nvlink.link"]): point.value
        for point in collected.points
        if point.name == "whichrank.gpu.nvlink.link.errors"
    }
    assert by_link == {(played.uuids[5], "2"): 40.0, (played.uuids[5], "9"): 2.0}


def test_a_link_that_drops_is_told_at_once_with_its_remote_end(played: PlayedGpus, start: Start) -> None:
    collector = start(played)
    links = int(played.value(0, "nvlink.count"))
    collector.collect()
    played.link_down(3, 7)
    collected = collector.collect()
    (down,) = [item for item in collected.happenings if item.attributes["event"] == "nvlink_down"]
    assert down.attributes["gpu_uuid"] == played.uuids[3]
    assert (down.attributes["link"], down.attributes["remote"]) == (7, "switch")
    assert down.attributes["remote_pci_bus"] == "0000:c4:00.0"
    up = values_of(collected, "whichrank.gpu.nvlink.links", whichrank__gpu__nvlink__state="up")
    assert up == {uuid: links - (uuid == played.uuids[3]) for uuid in played.uuids}
    assert values_of(collected, "whichrank.gpu.nvlink.up", whichrank__gpu__nvlink__link="7") == {played.uuids[3]: 0.0}
    played.link_up(3, 7)
    back = collector.collect()
    assert [item.attributes["event"] for item in back.happenings] == ["nvlink_up"]
    assert values_of(back, "whichrank.gpu.nvlink.up", whichrank__gpu__nvlink__link="7") == {played.uuids[3]: 1.0}
