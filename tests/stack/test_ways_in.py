"""Telemetry of others by the shipped intake: exporters found by files, OTLP with a token; Kafka, and conditions."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tests.stack.parts.intake import TARGETS, Intake
from tests.stack.parts.kafka import Kafka, Security
from tests.stack.parts.node_exporter import PORT, NodeExporter
from tests.stack.parts.own_service import OwnService
from tests.stack.parts.placing import DEPLOY
from tests.stack.parts.service import Service, eventually
from tests.stack.parts.snmp import DOES_NOT_WORK, DOWN, NO_SNMPD, SNMPD, UP, SnmpExporter, Switch, own_table
from whichrank.diagnosis.crosswalk.rules import rule_for
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Finding
from whichrank.telemetry.topics import TOPIC_FINDINGS, TOPIC_LOGS, TOPIC_METRICS
from whichrank.telemetry.vocabulary import EventName
from whichrank.transport.kafka import make_client
from whichrank.transport.kafka_read import read_whole

HOST = os.uname().nodename.lower()
GPU = "GPU-1b2c3d4e-0000-0000-0000-000000000007"
SECOND = 1_000_000_000


class Road:
    """Exporters, a switch behind a real snmpd, intake, a broker with users, and a processor."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka = kafka
        topics = OwnService("topic-init", folder / "topics", kafka)
        topics.service.start(wait=False)
        assert topics.service.wait() == 0, topics.service.output()
        self.processor = OwnService("processor", folder / "processor", kafka)
        self.intake = Intake(folder / "intake", kafka)
        (folder / "node").mkdir()
        self.node = NodeExporter(folder / "node")
        self.switch = Switch(folder / "leaf-01", ["Ethernet1/1", "Ethernet1/2", "Ethernet1/3"], ["PSU 1", "Fan 1"])
        self.snmp = SnmpExporter(folder)
        self.services: list[Service] = [
            *(self.processor.service, self.intake.service, self.node.service, self.switch.service, self.snmp.service)
        ]

    def start(self) -> None:
        for service in self.services:
            service.start()

    def end(self) -> None:
        for service in self.services:
            service.kill()

    def conditions(self) -> dict[str, dict[str, Any]]:
        """As last told: entity/name/device -> the condition."""
        found: dict[str, dict[str, Any]] = {}
        for message in read_whole(make_client(self.kafka.settings()), TOPIC_FINDINGS):
            for payload in decode_logs(TOPIC_FINDINGS, message.value):
                if isinstance(payload, Finding) and "condition" in payload.body:
                    told = dict(payload.body["condition"])
                    found[f"{told['entity'].lower()}/{told['name']}/{told['device']}"] = told
        return found


@pytest.fixture
def road(fresh_kafka: Callable[..., Kafka], tmp_path: Path) -> Iterator[Road]:
    kafka = fresh_kafka(Security(tls=True, sasl=True))
    kafka.grant()
    made = Road(kafka, tmp_path)
    yield made
    made.end()


def worn_gpu(value: float, at_ns: int, name: str = "DCGM_FI_DEV_ROW_REMAP_FAILURE") -> bytes:
    """What somebody's own Collector sends of a dcgm-exporter."""
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    part.resource.attributes.append(KeyValue(key="k8s.node.name", value=AnyValue(string_value="gpu-node-07")))
    metric = part.scope_metrics.add().metrics.add(name=name)
    point = metric.gauge.data_points.add(as_double=value, time_unix_nano=at_ns)
    point.attributes.append(KeyValue(key="UUID", value=AnyValue(string_value=GPU)))
    return request.SerializeToString()


def log(event_name: str, body: str) -> bytes:
    request = ExportLogsServiceRequest()
    part = request.resource_logs.add()
    part.resource.attributes.append(KeyValue(key="whichrank.node.id", value=AnyValue(string_value="gpu-node-07")))
    record = part.scope_logs.add().log_records.add(event_name=event_name, time_unix_nano=time.time_ns())
    record.body.string_value = body
    return request.SerializeToString()


@pytest.mark.skipif(SNMPD is None, reason=NO_SNMPD)
def test_what_exporters_and_senders_say_becomes_conditions(road: Road) -> None:
    road.start()
    intake = road.intake
    intake.scrape("node_exporter", [{"targets": [road.node.address]}])
    of_switch = {
        "__exporter": road.snmp.address,
        "__param_module": "if_mib,entity_sensors",
        "__param_auth": "public_v2",
    }
    intake.scrape("snmp_exporter", [{"targets": [road.switch.address], "labels": {**of_switch, "switch": "leaf-01"}}])

    # Nobody without the token, and what only agents may say from nobody.
    assert intake.send("metrics", worn_gpu(0.0, time.time_ns()), token="") == 401
    assert intake.send("metrics", worn_gpu(0.0, time.time_ns()), token="made-up") == 401
    assert intake.send("logs", log(EventName.KERNEL_EVENT.value, "forged")) == 200
    assert intake.send("logs", log("other.event", "hello")) == 200
    forged = worn_gpu(1.0, time.time_ns(), "whichrank.gpu.remapped_rows.failure")
    assert intake.send("metrics", forged) == 200
    assert intake.send("metrics", worn_gpu(0.0, time.time_ns())) == 200

    asked = road.switch.asked
    eventually(lambda: road.switch.asked >= asked + 300, what="walks of a healthy switch")
    assert road.conditions() == {}

    road.node.say(f"sys/{PORT}/state", "1: DOWN")
    road.switch.say_port(2, DOWN)
    road.switch.say_errors(1, 50.0)
    road.switch.say_discards(3, 500.0)
    road.switch.say_sensor(1, DOES_NOT_WORK)
    assert intake.send("metrics", worn_gpu(1.0, time.time_ns())) == 200
    wanted = {
        f"{HOST}/port_down/mlx5_0/1",
        "leaf-01/port_down/Ethernet1/2",
        "leaf-01/port_errors/Ethernet1/1",
        "leaf-01/port_discards/Ethernet1/3",
        "leaf-01/switch_part_failed/PSU 1",
        f"gpu-node-07/gpu_memory_worn/{GPU}",
    }
    eventually(lambda: set(road.conditions()) >= wanted, what=f"conditions, not {sorted(road.conditions())}")
    assert set(road.conditions()) == wanted
    road.switch.say_port(2, UP)
    ended = "leaf-01/port_down/Ethernet1/2"
    eventually(lambda: road.conditions()[ended]["until"] is not None, what="the switch's port is up again")

    said = b"".join(message.value for message in read_whole(make_client(road.kafka.settings()), TOPIC_LOGS))
    assert b"hello" in said
    assert b"forged" not in said
    assert b"gpu-node-07" not in said, "a sender is no node of ours"
    measured = b"".join(message.value for message in read_whole(make_client(road.kafka.settings()), TOPIC_METRICS))
    assert b"DCGM_FI_DEV_ROW_REMAP_FAILURE" in measured
    assert b"whichrank.gpu.remapped_rows" not in measured


def test_each_example_of_targets_is_found_by_a_job_of_the_intake() -> None:
    jobs = yaml.safe_load((DEPLOY / "collector/intake.yaml").read_text())["receivers"]["prometheus"]["config"]
    files = [
        file for job in jobs["scrape_configs"] for entry in job.get("file_sd_configs", ()) for file in entry["files"]
    ]
    examples = sorted(TARGETS.glob("*.yaml.example"))
    assert sorted(Path(file).name.replace("*", "") for file in files) == [path.stem for path in examples]
    for path in examples:
        for group in yaml.safe_load(path.read_text()):
            assert set(group) <= {"targets", "labels"}
            assert all(re.fullmatch(r"[\w.-]+(:\d+)?", target) for target in group["targets"]), path


def test_what_the_intake_asks_switches_by_itself_is_what_snmp_exporter_asks() -> None:
    """The Collector's own SNMP receiver is in the image, and its module nowhere that tests may fetch it from."""
    asked = yaml.safe_load((DEPLOY / "collector/snmp.yaml").read_text())
    table = yaml.safe_load(own_table().read_text())["modules"]["if_mib"]["metrics"]
    oids = {entry["name"]: entry["oid"] for entry in table}
    used = [receiver for name, receiver in asked["receivers"].items() if name.startswith("snmp/")]
    for receiver in used:
        for name, metric in receiver["metrics"].items():
            (column,) = metric["column_oids"]
            assert column["oid"] == oids[name]
            assert [attribute["name"] for attribute in column["attributes"]] == ["ifName"]
            rule = rule_for(name)
            assert rule is not None
            assert rule.entity == "switch"
    assert json.dumps(asked["service"]["pipelines"]).count("snmp/") == len(used)
