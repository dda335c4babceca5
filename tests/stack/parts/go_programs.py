"""Collector, Prometheus, VictoriaLogs, Jaeger and others: built with Go from published modules, once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.stack.parts.cache import digest_of, made_once

BUILD_TIMEOUT_S = 3600
COLLECTOR_MODULES = Path(__file__).parent / "collector_modules"
GO_BUILD = ("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w")
#: No work space, no flags and no C of whoever runs the tests.
GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoProgram:
    """A program of a published module, built as its own go.mod says; ``checksum`` is the module's in Go's log."""

    name: str
    module: str
    version: str
    checksum: str
    package: str
    oldest_go: tuple[int, int, int]
    tags: str = "netgo"
    #: File -> content, of what the module's own build makes and its package has not (a page for browsers).
    adds: tuple[tuple[str, str], ...] = field(default=(), repr=False)


PROMETHEUS = GoProgram(
    name="prometheus",
    module="github.com/prometheus/prometheus",
    version="v0.315.0",  # Prometheus 3.15.0
    checksum="h1:sFGZWmC2Hk9N1NBJGCnXYZb5hyLCq8yuAMoEjLAg6ac=",
    package="./cmd/prometheus",
    oldest_go=(1, 26, 0),
    tags="netgo,remove_all_sd",  # without some 25 service discoveries: prometheus.yml names its targets
)
VICTORIALOGS = GoProgram(
    name="victorialogs",
    module="github.com/VictoriaMetrics/VictoriaLogs",
    version="v1.52.1",
    checksum="h1:B83xu4usTNPrpsFZFH/Dei3nWIsQizIeSRghFxj4ZJo=",
    package="./app/victoria-logs",
    oldest_go=(1, 26, 5),
)
VMAUTH = GoProgram(
    name="vmauth",
    module="github.com/VictoriaMetrics/VictoriaMetrics",
    version="v1.146.0",
    checksum="h1:MOZZcCGyDF7PNUU7PDSphhNGug33XHYUagQB+QK1tC8=",
    package="./app/vmauth",
    oldest_go=(1, 26, 0),
)
JAEGER = GoProgram(
    name="jaeger",
    module="github.com/jaegertracing/jaeger",
    version="v1.76.0",  # the module of Jaeger 2.13.0; its page is not in it, its API is
    checksum="h1:sWCOOF1dr+NL0PLil7mFo3BqqQL8k4WiM7aguFbc14g=",
    package="./cmd/jaeger",
    oldest_go=(1, 25, 4),
)
NODE_EXPORTER = GoProgram(
    name="node_exporter",
    module="github.com/prometheus/node_exporter",
    version="v1.11.1",
    checksum="h1:8gvOkYwXa3naJ0yMBzuTUE3kytZdZqRMiDanZ4waC1o=",
    package=".",
    oldest_go=(1, 25, 0),
    tags="netgo,osusergo",
)
SNMP_EXPORTER = GoProgram(
    name="snmp_exporter",
    module="github.com/prometheus/snmp_exporter",
    version="v0.29.0",
    checksum="h1:COShgBj1tmWvA5pAkWQgO/lB3+bL/MFqUIqOELSZaBw=",
    package=".",
    oldest_go=(1, 24, 1),
    tags="netgo,osusergo",
)
ALERTMANAGER = GoProgram(
    name="alertmanager",
    module="github.com/prometheus/alertmanager",
    version="v0.34.0",
    checksum="h1:z75n0NoypggESmt3HD4JlTXOaOZj1EBz1ACHO4Z6EUk=",
    package="./cmd/alertmanager",
    oldest_go=(1, 25, 0),
    adds=(("ui/app/dist/index.html", "<html></html>"),),
)
NFPM = GoProgram(
    name="nfpm",
    module="github.com/goreleaser/nfpm/v2",
    version="v2.45.2",
    checksum="h1:sWBXUErMSKHMvT8f1mgtY3yn2jbNBAE2TNBXNXpSDGc=",
    package="./cmd/nfpm",
    oldest_go=(1, 24, 0),
)
COMPOSE = GoProgram(
    name="docker-compose",
    module="github.com/docker/compose/v5",
    version="v5.5.1",
    checksum="h1:saWlMxB0tfQ+FVUlWGIUjLvR0jF5cfTU18KI5zKLD/M=",
    package="./cmd",
    oldest_go=(1, 26, 3),
)


def need_go(what: str, oldest: tuple[int, int, int]) -> None:
    """Skips the test without a Go that is new enough."""
    if shutil.which("go") is None:
        pytest.skip(f"{what} is built with Go, which is not installed here")
    version = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    numbers = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", version)
    if numbers is None or tuple(int(number or 0) for number in numbers.groups()) < oldest:
        pytest.skip(f"{what} needs Go {'.'.join(map(str, oldest))}; here is {version}")


def built(program: GoProgram) -> Path:
    """The executable. Built in the module's own folder, so that its go.mod and go.sum decide."""
    need_go(program.name, program.oldest_go)

    def make(target: Path) -> None:
        download = _go(["go", "mod", "download", "-json", f"{program.module}@{program.version}"], cwd=Path.home())
        module = json.loads(download)
        assert module["Sum"] == program.checksum, f"{program.name}: the module is another one: {module['Sum']}"
        work = target.with_suffix(".modules")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for name in ("go.mod", "go.sum"):
            (work / name).write_bytes((Path(module["Dir"]) / name).read_bytes())
        modules = [f"-modfile={work / 'go.mod'}", "-mod=mod", f"-tags={program.tags}"]
        source = _with_files(Path(module["Dir"]), work / "source", program.adds)
        _go([*GO_BUILD, *modules, "-o", str(target), program.package], cwd=source)
        shutil.rmtree(work)

    made_of = [repr(program), *GO_BUILD, *(word for added in program.adds for word in added)]
    return made_once(program.name, digest_of(map(str.encode, made_of)), make)


def _with_files(module: Path, copy: Path, adds: tuple[tuple[str, str], ...]) -> Path:
    """The module's folder, or a copy with these files where it lacks some: what Go has downloaded cannot be written."""
    if not adds:
        return module
    shutil.copytree(module, copy, copy_function=shutil.copyfile)
    for folder, _, _ in os.walk(copy):
        Path(folder).chmod(0o755)
    for name, content in adds:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(content)
    return copy


def built_collector() -> Path:
    """The Collector of the modules beside this file."""
    need_go("the OpenTelemetry Collector", (1, 25, 0))
    sources = [path.read_bytes() for path in sorted(COLLECTOR_MODULES.iterdir())]

    def make(target: Path) -> None:
        # Its Prometheus receiver without some 25 service discoveries: tests name their targets.
        build = [*GO_BUILD, "-mod=readonly", "-tags=netgo,remove_all_sd", "-o", str(target), "."]
        _go(build, cwd=COLLECTOR_MODULES)

    return made_once("otelcol", digest_of(sources), make)


def _go(command: list[str], cwd: Path) -> str:
    run = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **GO_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, f"{' '.join(command)}:\n{(run.stderr or run.stdout)[-4000:]}"
    return run.stdout
