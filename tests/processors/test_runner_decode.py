"""Metrics of ours and of other people's exporters reach the operators in our words, filed under their entity."""

from __future__ import annotations

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from whichrank.processors.entity.rules import load_rules
from whichrank.processors.runner_decode import MessageDecoder
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.otlp_metrics import encode_points
from whichrank.telemetry.records import Broken, Event, Identity, Point, Samples
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_METRICS
from whichrank.telemetry.vocabulary import EventName

WANTED = load_rules().wanted


def scraped(instance: str, *series: tuple[str, float, dict[str, str]]) -> bytes:
    """As a collector's Prometheus receiver sends what it scraped."""
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    part.resource.attributes.add(key="service.instance.id").value.string_value = instance
    part.resource.attributes.add(key="service.name").value.string_value = "dcgm"
    scope = part.scope_metrics.add()
    for name, value, labels in series:
        point = scope.metrics.add(name=name).gauge.data_points.add(time_unix_nano=5, as_double=value)
        for key, label in labels.items():
            point.attributes.add(key=key).value.string_value = label
    return request.SerializeToString()


def test_our_own_go_through_as_they_are() -> None:
    point = Point(name="whichrank.collector.late", value=3.0, attributes={"whichrank.collector": "gpu"}, time_ns=9)
    (value,) = encode_points(Identity(cluster="c", node="n1"), [point], limit_bytes=10_000)
    (samples,) = MessageDecoder(WANTED).decode(TOPIC_METRICS, value)
    assert isinstance(samples, Samples)
    assert (samples.entity, samples.identity.node, samples.identity.cluster) == ("node", "n1", "c")
    assert [p.value for p in samples.points] == [3.0]


def test_an_exporters_words_become_ours_under_the_node_that_we_know() -> None:
    decoder = MessageDecoder(WANTED)
    alive = Event(name=EventName.AGENT_HEALTH, identity=Identity(node="Node-7"), time_ns=1)
    decoder.decode(TOPIC_BLOCKS, encode_payloads([alive]))
    labels = {"gpu": "3", "UUID": "GPU-77", "Hostname": "node-7"}
    series = (("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1.0, labels), ("DCGM_FI_DEV_GPU_TEMP", 60.0, labels))
    found = decoder.decode(TOPIC_METRICS, scraped("node-7:9400", *series))
    (samples,) = found
    assert isinstance(samples, Samples)
    assert (samples.entity, samples.identity.node) == ("node", "Node-7")
    assert [(p.name, p.attributes["hw.id"]) for p in samples.points] == [
        ("whichrank.gpu.remapped_rows.failure", "GPU-77")
    ]


def test_nothing_wanted_is_nothing_decoded_and_garbage_is_broken() -> None:
    assert MessageDecoder(()).decode(TOPIC_METRICS, b"\x00\x01") == []
    (broken,) = MessageDecoder(WANTED).decode(TOPIC_METRICS, b"\x00\x01")
    assert isinstance(broken, Broken)


def test_an_exporter_knows_no_cluster_and_is_of_the_only_one_there_is() -> None:
    decoder = MessageDecoder(WANTED)
    message = scraped("leaf-3:9116", ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1.0, {"UUID": "GPU-77", "Hostname": "node-7"}))

    def cluster_of() -> str:
        (samples,) = decoder.decode(TOPIC_METRICS, message)
        assert isinstance(samples, Samples)
        return samples.identity.cluster

    told = [cluster_of()]
    for cluster in ("blue", "blue", "green"):
        alive = Event(name=EventName.AGENT_HEALTH, identity=Identity(cluster=cluster, node="node-1"), time_ns=1)
        decoder.decode(TOPIC_BLOCKS, encode_payloads([alive]))
        told.append(cluster_of())
    assert told == ["", "blue", "blue", ""]


def test_a_page_that_comes_again_in_another_order_is_told_the_same() -> None:
    decoder = MessageDecoder(WANTED)
    ports = [{"ifName": f"Eth1/{port}", "switch": "leaf-3"} for port in range(4)]
    of_status = [("ifOperStatus", 1.0, labels) for labels in ports]
    of_errors = [("ifInErrors", 7.0, labels) for labels in ports]
    told = []
    for series in (of_status + of_errors, of_errors + of_status):
        (samples,) = decoder.decode(TOPIC_METRICS, scraped("leaf-3:9116", *series))
        assert isinstance(samples, Samples)
        told.append(samples)
    assert (told[0].entity, told[0].identity.node) == ("switch", "leaf-3")
    assert told[0] == told[1]
    assert told[0].order is told[1].order is not None
    assert {point.name for point in told[0].points} == {"hw.network.up", "hw.errors"}


def test_points_of_nobody_are_counted_at_each_page_and_told_once() -> None:
    said: list[str] = []
    decoder = MessageDecoder(WANTED, said.append)
    page = scraped("127.0.0.1:9400", *(("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1.0, {"UUID": f"GPU-{n}"}) for n in range(3)))
    assert [list(decoder.decode(TOPIC_METRICS, page)) for _ in range(2)] == [[], []]
    assert decoder.nameless == 6
    assert len(said) == 1


def test_an_agent_that_is_heard_later_gives_its_node_its_name() -> None:
    decoder = MessageDecoder(WANTED)
    page = scraped("node-7:9400", ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1.0, {"UUID": "GPU-77", "Hostname": "node-7"}))

    def node() -> str:
        (samples,) = decoder.decode(TOPIC_METRICS, page)
        assert isinstance(samples, Samples)
        return samples.identity.node

    before = node()
    alive = Event(name=EventName.AGENT_HEALTH, identity=Identity(node="Node-7"), time_ns=1)
    decoder.decode(TOPIC_BLOCKS, encode_payloads([alive]))
    assert (before, node()) == ("node-7", "Node-7")
