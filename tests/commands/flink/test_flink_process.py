"""The words that submit the job, and what its health is made of; a real cluster is asked in ``tests/stack/flink``."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from whichrank.commands.services.flink_cluster import FlinkCluster, FlinkJob, figures_of
from whichrank.processors.flink.kafka_tables import client_properties, input_options, table
from whichrank.transport.kafka_settings import KafkaSettings

WHICHRANK = Path(sys.executable).with_name("whichrank")


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [WHICHRANK, "process", "--engine", "flink", *words],
        env={**os.environ, "WHICHRANK_KAFKA": "127.0.0.1:9", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_is_shown_without_secrets() -> None:
    shown = command(
        *("--print-command", "--set", "flink_parallelism=4", "--set", "flink_savepoint=file:///s"),
        WHICHRANK_KAFKA_SASL="PLAIN",
        WHICHRANK_KAFKA_USER="u",
        WHICHRANK_KAFKA_PASSWORD="hidden",
        FLINK_HOME="/opt/flink",
    )
    assert shown.returncode == 0, shown.stderr
    assert "/opt/flink/bin/flink run -d -m 127.0.0.1:8081 -p 4 -s file:///s" in shown.stdout
    assert "WHICHRANK_KAFKA_USER=u" in shown.stdout
    assert "hidden" not in shown.stdout + shown.stderr


def test_without_flink_it_says_what_to_name() -> None:
    refused = command("--set", "flink=127.0.0.1:9")
    assert refused.returncode == 2
    assert "name its JobManager with --set flink=HOST:PORT" in refused.stderr


def test_a_shadow_is_refused() -> None:
    assert "--shadow is for the embedded engine" in command("--shadow").stderr


def test_figures_say_how_far_behind_the_job_is() -> None:
    job = FlinkJob(id="j", state="RUNNING", watermark_ms=7_000, checkpoint_ms=9_500, restarts=2)
    figures = {name: value for name, _, value in figures_of(job, 10_000)}
    assert (figures["running"], figures["lag_seconds"], figures["checkpoint_age_seconds"]) == (1.0, 3.0, 0.5)
    assert "lag_seconds" not in {name for name, _, _ in figures_of(FlinkJob(id="j", state="CREATED"), 10_000)}


def test_a_cluster_that_is_not_there_is_an_error_of_its_own() -> None:
    with pytest.raises(OSError, match="refused"):
        FlinkCluster("127.0.0.1:9").find("whichrank")


ODD = (b"[]", b"null", b'{"jobs": 7}', b'{"jobs": [{"jid": []}], "latest": "x"}', b'{"state": 1e999, "vertices": [7]}')


@pytest.mark.parametrize("body", [*ODD, b"[" * 100_000, b"no JSON"])
def test_whatever_answers_in_place_of_flink_nothing_else_is_raised(body: bytes) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cluster = FlinkCluster(f"127.0.0.1:{server.server_port}")
        for look in (lambda: cluster.find("whichrank"), lambda: cluster.look("j", "clusters")):
            with pytest.raises(OSError, match="not what Flink answers"):
                look()
        server.shutdown()


def test_texts_of_a_table_stay_texts_whatever_is_in_them() -> None:
    """A password with quotes ends neither the login's words nor the statement."""
    settings = KafkaSettings(brokers="b:1", sasl="SCRAM-SHA-512", user="u", password="a'b\"c\\d")
    login = client_properties(settings)["sasl.jaas.config"]
    assert login.endswith('ScramLoginModule required username="u" password="a\'b\\"c\\\\d";')
    statement = table("t", ("v BYTES",), input_options(settings, ("x",), "g"))
    assert statement.count("'") % 2 == 0
    assert "a''b" in statement


def test_topics_are_read_under_their_prefix_from_the_beginning() -> None:
    options = input_options(KafkaSettings(brokers="b:1", topic_prefix="p."), ("x", "y"), "g")
    assert (options["topic"], options["scan.startup.mode"]) == ("p.x;p.y", "earliest-offset")
