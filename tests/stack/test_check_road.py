"""From ``whichrank check`` to a condition that begins and ends, over a real broker; and what happens without one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack.parts.kafka import Kafka
from tests.stack.parts.service import eventually
from tests.stack.test_process_command import Bench
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.records import Finding
from whichrank.telemetry.topics import TOPIC_FINDINGS
from whichrank.transport.kafka_read import read_whole

CHECKS = """
[[check]]
name = "raid"
command = ["{program}"]
domain = "storage"
"""


@pytest.fixture
def bench(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(kafka, topic_prefix, tmp_path)
    assert made.command("topics", "--partitions", "2").returncode == 0
    yield made
    for process in made.running:
        process.kill()
        process.wait()


def site_check(folder: Path, answer: dict[str, Any], status: int) -> str:
    """The file of a site's checks, whose program says this."""
    program, file = folder / "raid.sh", folder / "checks.toml"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\nexit {status}\n")
    program.chmod(0o755)
    file.write_text(CHECKS.format(program=program))
    file.chmod(0o644)
    return str(file)


def told(bench: Bench) -> list[dict[str, Any]]:
    """What was said of the site's condition, in order."""
    found: list[tuple[int, dict[str, Any]]] = []
    for message in read_whole(bench.client, TOPIC_FINDINGS):
        for payload in decode_logs(TOPIC_FINDINGS, message.value):
            if isinstance(payload, Finding) and payload.body.get("condition", {}).get("name") == "site_raid":
                found.append((message.offset, dict(payload.body["condition"])))
    return [condition for _, condition in found]


def test_what_a_check_finds_is_a_condition_until_a_check_finds_it_no_more(bench: Bench, tmp_path: Path) -> None:
    bench.process()
    bench.wait_until_ready()
    file = site_check(tmp_path, {"status": "CRITICAL", "reason": "disk 3 is gone", "device": "md0"}, 2)
    words = ("check", "--mode", "prolog", "--only", "site", "--json")
    done = bench.command(*words, WHICHRANK_SITE_CHECKS=file)
    assert done.returncode == 1, done.stderr
    assert "Kafka" not in done.stderr
    eventually(lambda: bool(told(bench)), what="the condition is told")
    begun = told(bench)[-1]
    assert (begun["device"], begun["severity"], begun["until"]) == ("md0", "error", None)
    assert begun["entity"] == os.uname().nodename
    assert begun["text"].startswith("prolog: md0: disk 3 is gone")
    assert bench.command(*words, WHICHRANK_SITE_CHECKS=file).returncode == 1
    site_check(tmp_path, {"reason": "all disks are there"}, 0)
    assert bench.command(*words, WHICHRANK_SITE_CHECKS=file).returncode == 0
    eventually(lambda: told(bench)[-1]["until"] is not None, what="it is over")
    over = told(bench)[-1]
    assert over["since"] == begun["since"]
    assert {condition["since"] for condition in told(bench)} == {begun["since"]}


def test_without_a_broker_a_check_says_and_ends_as_ever(tmp_path: Path) -> None:
    bench = Bench.__new__(Bench)
    bench.folder, bench.environment = tmp_path, {**os.environ, "WHICHRANK_CHECK_TELL_S": "2"}
    file = site_check(tmp_path, {"reason": "bad"}, 2)
    words = ("check", "--only", "site", "--json", "--kafka", "127.0.0.1:1")
    began_s = time.monotonic()
    done = bench.command(*words, WHICHRANK_SITE_CHECKS=file)
    assert time.monotonic() - began_s < 30.0
    assert done.returncode == 1
    assert json.loads(done.stdout)["status"] == "CRITICAL"
    (line,) = done.stderr.strip().splitlines()
    assert "did not reach Kafka" in line
