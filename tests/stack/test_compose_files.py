"""docker-compose.yml and its overlays: valid for Compose itself, confined, pinned, and read by these tests as it is."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stack.parts.compose import BASE, FLINK, NVIDIA, OPEN, REQUIRED, TLS, Definition, load, services
from tests.stack.parts.go_programs import (
    ALERTMANAGER,
    COLLECTOR_MODULES,
    COMPOSE,
    JAEGER,
    PROMETHEUS,
    VICTORIALOGS,
    VMAUTH,
    built,
)
from tests.stack.parts.kafka import POM
from tests.stack.parts.placing import REPOSITORY, replace
from tests.stack.parts.promtool import PROMTOOL
from tests.stack.parts.service import answers_http
from tests.stack.parts.whole_stack import Stack

OVERLAYS: tuple[list[str], ...] = ([], [TLS], [OPEN], [TLS, OPEN], [NVIDIA], [FLINK])
PROFILES = {
    "none": set[str](),
    "debug": {"kafka-ui"},
    "demo": {"demo"},
    "gpu": {"agent"},
    "standby": {"processor-standby"},
    "readers": {"log-readers"},
    "respond": {"respond"},
    "intake": {"intake"},
    "paging": {"notify", "alertmanager"},
    "annotate": {"annotate"},
    "*": {
        *("kafka-ui", "demo", "agent", "log-readers", "processor-standby", "respond", "intake", "notify"),
        *("alertmanager", "annotate"),
    },
}
#: Run to their end, once.
ONE_SHOT = {"topic-init", "acl-init", "busybox", "store-folders"}
#: Without a health check: nothing waits for them, and they end by themselves when something is wrong.
UNCHECKED = {"kafka-ui", "agent", "demo", "log-readers", "annotate"}
#: The agent reads what belongs to the users of the node.
ROOT = {"agent"}


def compose_config(overlays: list[str], profile: str = "*", **environment: str) -> subprocess.CompletedProcess[str]:
    files = [word for file in (BASE, *overlays) for word in ("-f", str(REPOSITORY / file))]
    return subprocess.run(
        [built(COMPOSE), *files, "--profile", profile, "--env-file", os.devnull, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("overlays", "profile"), list(itertools.product(OVERLAYS, PROFILES)))
def test_compose_takes_every_profile_and_overlay(overlays: list[str], profile: str) -> None:
    config = compose_config(overlays, profile, **REQUIRED)
    assert config.returncode == 0, config.stderr
    assert set(json.loads(config.stdout)["services"]) & PROFILES["*"] == PROFILES[profile]


def test_a_machine_without_a_gpu_starts_every_profile() -> None:
    """A reservation keeps a service from starting where the driver is missing: only the overlay has one."""
    reserved = {
        file: {
            name for name, raw in load(file, REQUIRED)["services"].items() if "reservations" in str(raw.get("deploy"))
        }
        for file in (BASE, TLS, OPEN, NVIDIA, FLINK)
    }
    assert reserved == {BASE: set(), TLS: set(), OPEN: set(), NVIDIA: {"agent"}, FLINK: set()}


def test_without_a_password_nothing_starts_and_one_line_says_why() -> None:
    config = compose_config([])
    assert config.returncode != 0
    assert "set GRAFANA_ADMIN_PASSWORD in .env" in config.stderr


@pytest.mark.parametrize("overlays", OVERLAYS)
def test_these_tests_read_the_files_as_compose_does(overlays: list[str]) -> None:
    read = json.loads(compose_config(overlays, **REQUIRED).stdout)
    theirs = read["services"]
    ours = services(overlays)
    assert set(ours) == set(theirs)
    for name, definition in ours.items():
        raw = theirs[name]
        assert definition.image == raw["image"]
        assert definition.command == tuple(raw["command"] or ())
        assert definition.entrypoint == tuple(raw["entrypoint"] or ())
        assert definition.environment == raw.get("environment", {})
        files = {secret["source"]: read["secrets"][secret["source"]]["file"] for secret in raw.get("secrets", ())}
        assert definition.secrets == {name: Path(file) for name, file in files.items()}
        mounts = raw.get("volumes", ())
        binds = {mount["target"]: Path(mount["source"]) for mount in mounts if mount["type"] == "bind"}
        volumes = {mount["target"]: mount["source"] for mount in mounts if mount["type"] == "volume"}
        assert (definition.binds, definition.volumes) == (binds, volumes)


def everything() -> Iterator[Definition]:
    return iter(services([TLS, FLINK]).values())


@pytest.mark.parametrize("definition", list(everything()), ids=lambda definition: definition.name)
def test_every_container_is_confined(definition: Definition) -> None:
    raw = definition.raw
    user, _, _ = str(raw["user"]).partition(":")
    assert (int(user) == 0) == (definition.name in ROOT)
    assert ("cap_add" in raw or "pid" in raw) == (definition.name in ROOT)
    assert raw["read_only"] is True
    assert raw["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in raw["security_opt"]
    assert raw["mem_limit"]
    assert raw["pids_limit"]
    assert "privileged" not in raw
    assert "container_name" not in raw
    for mount in raw.get("volumes", []):
        assert mount["type"] != "bind" or mount["read_only"] is True, mount
    for port in raw.get("ports", []):
        assert port.startswith("127.0.0.1:"), port
    _, _, tag = definition.image.partition(":")
    assert re.search(r"\d+\.\d+\.\d+", tag), f"{definition.image} is not pinned"
    if definition.name in ONE_SHOT:
        assert raw["restart"] == "no"
    elif definition.name not in UNCHECKED:
        assert raw["restart"] == "unless-stopped"
        assert raw["healthcheck"]["test"][0] == "CMD"
    for condition in raw.get("depends_on", {}).values():
        assert condition["condition"] in ("service_healthy", "service_completed_successfully")


@pytest.mark.parametrize("overlays", OVERLAYS)
def test_our_own_services_take_their_variables(overlays: list[str], tmp_path: Path) -> None:
    """--print-config checks every key, and every file that a key names."""
    password, ca = tmp_path / "password", tmp_path / "ca.crt"
    password.write_text("one")
    ca.write_text("")
    asked = set()
    for definition in services(overlays).values():
        if not definition.image.startswith("whichrank:") or definition.name == "store-folders":
            continue
        command = " ".join(definition.command)
        program = [sys.executable, "-m", "whichrank.commands.main", *definition.command]
        if command == "topics":  # has no --print-config; test_our_own_services runs it
            continue
        asked.add(command)
        places = {"/etc/whichrank-tls/ca.crt": str(ca)}
        if named := definition.environment.get("WHICHRANK_CONFIG"):
            places[named] = str(definition.binds[named])
        places |= {f"/run/secrets/{secret}": str(password) for secret in definition.secrets}
        variables = {name: replace(value, places) for name, value in definition.environment.items()}
        assert all(not value.startswith(("/run/", "/etc/")) for value in variables.values()), variables
        config = subprocess.run(
            [*program, "--print-config"],
            env={**os.environ, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert config.returncode == 0, config.stderr
        taken = set(re.findall(r"environment (WHICHRANK_\w+)", config.stdout))
        named_ones = {name for name in definition.environment if name.startswith("WHICHRANK_")}
        assert taken == named_ones - {"WHICHRANK_CONFIG"}
    assert asked == {"agent", "process", "respond", "notify", "grafana annotate"}


@pytest.mark.parametrize(("variable", "service"), [("KAFKA_BIND", "kafka"), ("INTAKE_BIND", "intake")])
def test_only_two_can_be_opened_to_others_and_each_by_its_own_variable(variable: str, service: str) -> None:
    opened = services(values={**REQUIRED, variable: "0.0.0.0", "KAFKA_HOST": "broker.example"})
    outside = {
        name for name, definition in opened.items() for port in definition.raw.get("ports", []) if "0.0.0.0" in port
    }
    assert outside == {service}
    assert opened["kafka"].environment["KAFKA_OUTSIDE"] == "broker.example:19092"


def test_the_images_are_of_the_versions_that_are_tested() -> None:
    kafka = re.search(r"<artifactId>kafka_2.13</artifactId><version>([\d.]+)<", POM.read_text())
    collector = re.search(r"/receiver/kafkareceiver v([\d.]+)", (COLLECTOR_MODULES / "go.mod").read_text())
    assert kafka is not None
    assert collector is not None
    minor = PROMETHEUS.version.removeprefix("v0.3").split(".")[0]  # v0.315.0 is the module of v3.15.0
    tags = {name: definition.image.partition(":")[2] for name, definition in services().items()}
    assert tags["kafka"] == tags["acl-init"] == kafka[1]
    assert tags["collector"] == tags["intake"] == collector[1]
    assert tags["victorialogs"] == VICTORIALOGS.version
    assert tags["log-readers"] == VMAUTH.version
    assert tags["alertmanager"] == ALERTMANAGER.version
    jaeger = JAEGER.version.removeprefix("v1.").split(".")[0]  # v1.76.0 is the module of v2.13.0
    assert tags["jaeger"] == f"2.{int(jaeger) - 63}.0"
    assert tags["prometheus"] == f"v3.{minor}.0"
    project = re.search(r'^version = "(.+)"', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    assert tags["processor"] == tags["topic-init"] == project[1]


def test_the_example_environment_names_every_variable_with_its_default() -> None:
    example = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", (REPOSITORY / ".env.example").read_text(), re.MULTILINE))
    example.pop("COMPOSE_FILE")
    used: dict[str, str] = {}
    for file in (BASE, TLS, OPEN):
        for name, how, default in re.findall(r"\$\{(\w+)(:-|:\?)([^}]*)\}", (REPOSITORY / file).read_text()):
            default = "" if how == ":?" else default
            assert used.setdefault(name, default) == default, f"{name} has two defaults"
    assert used == example
    assert example["GRAFANA_ADMIN_PASSWORD"] == ""


def test_the_health_checks_answer(stack: Stack) -> None:
    """What Docker would run inside of the containers, run here."""
    checks = {name: definition.raw["healthcheck"]["test"] for name, definition in services().items() if name in PARTS}
    for name, check in checks.items():
        words = PARTS[name](stack)
        command = [replace(word, words) for word in check[1:]]
        if command[0].endswith("wget"):
            assert answers_http(command[-1]), name
        else:
            assert subprocess.run(command, capture_output=True, check=False).returncode == 0, name


PARTS: dict[str, Any] = {
    "kafka": lambda stack: {"/opt/kafka": str(stack.kafka.home), "127.0.0.1:9094": stack.kafka.internal_address},
    "collector": lambda stack: {"127.0.0.1:13133": stack.bridge.health_address},
    "prometheus": lambda stack: {
        "127.0.0.1:9090": stack.prometheus.address,
        "/bin/promtool": str(built(PROMTOOL)),
        "/etc/prometheus": str(stack.prometheus.config),
    },
    "victorialogs": lambda stack: {"127.0.0.1:9428": stack.logs.address},
    "jaeger": lambda stack: {"127.0.0.1:13133": stack.jaeger.health_address},
}


def test_each_store_that_is_not_root_finds_a_folder_that_is_its_own() -> None:
    """What the images of VictoriaLogs and Jaeger have at these places is root's; ours makes the folders beforehand."""
    all_of = services()
    folders = all_of["store-folders"]
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    made = re.search(r"RUN install --directory --owner=10001 (?:[^\n]*\\\n)*[^\n]*", dockerfile)
    assert made is not None
    assert set(folders.volumes) <= set(re.findall(r"/var/lib/whichrank/\w+", made[0]))
    for name in ("victorialogs", "jaeger"):
        assert set(all_of[name].volumes.values()) - {"busybox"} <= set(folders.volumes.values())
        assert all_of[name].raw["user"] == folders.raw["user"]
        assert "store-folders" in all_of[name].raw["depends_on"]


def test_volumes_are_named_and_all_of_them_are_declared() -> None:
    used = {source for definition in everything() for source in definition.volumes.values()}
    assert used == {name for file in (BASE, FLINK) for name in load(file, REQUIRED).get("volumes", ())}
