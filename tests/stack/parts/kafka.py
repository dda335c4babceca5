"""Kafka 4.3.1, the real broker: one node, started by the script and from the properties that compose mounts.

Its libraries come through Maven, once. What the image has under /opt/kafka/bin is written here as one line of java
each, so that ``deploy/kafka/start.sh`` and ``acls.sh`` run unchanged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.stack.parts.cache import digest_of, made_once
from tests.stack.parts.compose import OPEN, REQUIRED, TLS, service
from tests.stack.parts.placing import DEPLOY, Placed, place, replace
from tests.stack.parts.service import Service
from whichrank.transport.kafka_settings import KafkaSettings

POM = Path(__file__).parent / "kafka_libraries" / "pom.xml"
USERS = ("admin", "agent", "operator", "processor", "collector", "intake")
#: Where compose mounts the configuration.
CONFIG_FOLDER = "/etc/kafka-whichrank"
FETCH_TIMEOUT_S = 1800
TOOL_TIMEOUT_S = 300
#: What the broker logs when it takes requests.
STARTED = "Kafka Server started"
#: By the first compiler alone and without threads that collect: most of a test's broker is its start.
QUICK_START = "${KAFKA_JVM_PERFORMANCE_OPTS:--XX:TieredStopAtLevel=1 -XX:+UseSerialGC}"
#: Program of the image -> class. Tools get little memory.
PROGRAMS = {
    "kafka-storage.sh": "kafka.tools.StorageTool",
    "kafka-server-start.sh": "kafka.Kafka",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What is asked of clients; where no user is, compose.open.yaml is on top."""

    tls: bool = False
    sasl: bool = False

    @property
    def overlays(self) -> list[str]:
        return [*([TLS] if self.tls else []), *([] if self.sasl else [OPEN])]


PLAIN = Security()


def kafka_home() -> Path:
    """A folder as /opt/kafka in the image: bin/ and libs/. Skips the test without Java or Maven."""
    for program, package in {"java": "a Java runtime (17 or later)", "mvn": "Maven"}.items():
        if shutil.which(program) is None:
            pytest.skip(f"Kafka needs {package}, which is not installed here")

    def make(target: Path) -> None:
        (target / "bin").mkdir(parents=True)
        fetch = subprocess.run(
            ["mvn", "-q", "-B", "-f", POM, "dependency:copy-dependencies", f"-DoutputDirectory={target / 'libs'}"],
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
        assert fetch.returncode == 0, f"Maven could not fetch Kafka's libraries:\n{fetch.stdout[-4000:]}"
        for name, java_class in PROGRAMS.items():
            script = target / "bin" / name
            classes = f"${{KAFKA_CLASSES:+-XX:SharedArchiveFile=$KAFKA_CLASSES/{name}.jsa}}"
            classes += f" ${{KAFKA_CLASSES_FOR:+-XX:ArchiveClassesAtExit=$KAFKA_CLASSES_FOR/{name}.jsa}}"
            options = f"{QUICK_START} {classes} ${{KAFKA_HEAP_OPTS:--Xmx128m}} $KAFKA_LOG4J_OPTS"
            script.write_text(f'#!/bin/sh\nexec java {options} -cp "$(dirname "$0")/../libs/*" {java_class} "$@"\n')
            script.chmod(0o755)

    programs = "".join(f"{name} {java_class}\n" for name, java_class in PROGRAMS.items())
    return made_once("kafka", digest_of([POM.read_bytes(), programs.encode(), QUICK_START.encode(), b"2"]), make)


def kafka_classes() -> Path:
    """What broker and tools load, as the Java runtime maps it: a start takes a third of the CPU time (9.8 -> 3.3 s).

    The runtime passes over an archive that is not of its version, or not of these libraries.
    """

    def make(target: Path) -> None:
        target.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="kafka-classes-") as folder:
            broker = Kafka(
                Path(folder), security=Security(tls=True, sasl=True), classes={"KAFKA_CLASSES_FOR": str(target)}
            )
            broker.start()
            try:
                broker.tool("kafka-topics.sh", "--list")
                broker.tool("kafka-acls.sh", "--list")
                broker.tool("kafka-configs.sh", "--describe", "--entity-type", "topics")
            finally:
                broker.stop()

    java = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    return made_once("kafka-classes", digest_of([java, kafka_home().name.encode()]), make)


class Kafka:
    """A broker with data, ports, certificates and passwords of its own. It outlives ``kill`` and ``start``.

    host: where clients reach it; an address of a bridge, when they sit in other network namespaces. is_quick: it
    starts with little CPU time; else it is compiled as in production, for benchmarks. classes: in place of those that
    are kept, variables of the programs.
    """

    def __init__(
        self,
        folder: Path,
        *,
        security: Security = PLAIN,
        host: str = "127.0.0.1",
        is_quick: bool = True,
        classes: Mapping[str, str] | None = None,
    ) -> None:
        client, outside, internal, controller = free_ports(4)
        self.security = security
        self.address = f"{host}:{client}"
        #: Where the published port of compose would be.
        self.outside_address = f"{host}:{outside}"
        #: Without TLS and password, as from inside the container: for tools.
        self.internal_address = f"127.0.0.1:{internal}"
        self.home = kafka_home()
        self._java = {"KAFKA_CLASSES": str(kafka_classes())} if classes is None else dict(classes)
        if not is_quick:
            self._java["KAFKA_JVM_PERFORMANCE_OPTS"] = "-XX:+UseG1GC"
        self.passwords: dict[str, str] = {}
        self.ca: Path | None = None
        self._log_before_start = 0

        tls, self.secrets, config = folder / "tls", folder / "secrets", folder / "config"
        words = {
            "CLIENT://:9092": f"CLIENT://{host}:{client}",
            "OUTSIDE://:19092": f"OUTSIDE://{host}:{outside}",
            "CLIENT://kafka:9092": f"CLIENT://{host}:{client}",
            "127.0.0.1:9094": self.internal_address,
            "127.0.0.1:9093": f"127.0.0.1:{controller}",
            "/var/lib/kafka/data": str(folder / "data"),
        }
        folder.mkdir(parents=True, exist_ok=True)
        if security.tls:
            _run([DEPLOY / "kafka" / "certificates.sh", tls, host])
            words["/etc/kafka-tls"] = str(tls)
            self.ca = tls / "ca.crt"
        if security.sasl:
            _run([DEPLOY / "kafka" / "passwords.sh", self.secrets])
            self.passwords = {user: (self.secrets / f"kafka_{user}_password").read_text() for user in USERS}

        self.definition = service("kafka", security.overlays, {**REQUIRED, "WHICHRANK_TLS": str(tls)})
        files = {
            Path(target).name: source
            for target, source in self.definition.binds.items()
            if target.startswith(CONFIG_FOLDER)
        }
        self.placed: list[Placed] = place(config, files, words)
        self.service = Service(
            "Kafka",
            [replace(word, {CONFIG_FOLDER: str(config)}) for word in self.definition.entrypoint],
            log=folder / "kafka.log",
            ready=self._takes_requests,
            environment={
                **self.definition.environment,
                **self._java,
                "KAFKA_OUTSIDE": self.outside_address,
                "KAFKA_HOME": str(self.home),
                "KAFKA_SECRETS": str(self.secrets),
                "KAFKA_PROPERTIES": str(folder / "merged.properties"),
            },
        )

    def _takes_requests(self) -> bool:
        """The log is of all starts since the folder was made; only what the last one said counts."""
        return STARTED in self.service.output()[self._log_before_start :]

    def start(self, *, wait: bool = True) -> None:
        """Again after ``stop`` or ``kill``: the same data, ports and passwords."""
        self._log_before_start = len(self.service.output())
        self.service.start(wait=wait)

    def stop(self) -> int:
        return self.service.stop()

    def kill(self) -> None:
        self.service.kill()

    def settings(self, user: str = "admin", *, client: str = "kafka-python") -> KafkaSettings:
        """How a client of ours reaches this broker, as that user where there are users."""
        return KafkaSettings(
            brokers=self.address,
            client=client,
            tls=self.security.tls,
            tls_ca=self.ca,
            sasl="SCRAM-SHA-512" if self.security.sasl else "",
            user=user if self.security.sasl else "",
            password=self.passwords.get(user, ""),
        )

    def tool(self, program: str, *arguments: str) -> str:
        """Output of one of the image's programs, run as an operator runs it inside the container."""
        return _run(
            [self.home / "bin" / program, "--bootstrap-server", self.internal_address, *arguments], **self._java
        )

    def grant(self) -> None:
        """What ``acls.sh`` grants to agent, processor, collector and intake."""
        _run([DEPLOY / "kafka" / "acls.sh", self.internal_address], KAFKA_HOME=str(self.home), **self._java)


def _run(command: Sequence[str | Path], **environment: str) -> str:
    run = subprocess.run(
        [*map(str, command)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, f"{command[0]}: {run.stdout}{run.stderr}"
    return run.stdout
