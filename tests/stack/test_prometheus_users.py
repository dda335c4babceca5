"""Prometheus as docker-compose.yml has it takes nothing and answers nothing without its user's password."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.stack.parts.compose import service
from tests.stack.parts.go_programs import built, built_collector
from tests.stack.parts.placing import DEPLOY, place, replace
from tests.stack.parts.promtool import PROMTOOL
from tests.stack.parts.service import NO_HEADERS, Service, answers_http
from tests.stack.parts.stores import Prometheus, login
from tests.stack.test_road_for_people import incident_gauge

PASSWORDS = DEPLOY / "prometheus" / "passwords.sh"
#: What the script needs besides a program that makes the hash, and where such a program is.
NEEDED = ("sh", "openssl", "sed", "mkdir", "chmod", "mv")
MAKERS: Mapping[str, str] = {
    **{name: path for name in ("htpasswd", "perl") if (path := shutil.which(name)) is not None},
    **({"python3": os.path.realpath(sys.executable)} if find_spec("crypt") is not None else {}),
}
#: Names of compose that nobody has here.
NOWHERE = {name: "127.0.0.1:9" for name in ("processor:8461", "collector:8888", "victorialogs:9428", "jaeger:8888")}


def run_passwords(folder: Path, *makers: str) -> subprocess.CompletedProcess[str]:
    """The script, where of the programs that make hashes there are these alone; each notes its command line."""
    path = folder / f"bin{len(list(folder.glob('bin*')))}"
    path.mkdir()
    for name in NEEDED:
        (path / name).symlink_to(str(shutil.which(name)))
    for name in makers:
        (path / name).write_text(f'#!/bin/sh\necho "$@" >> {folder}/called\nexec {MAKERS[name]} "$@"\n')
        (path / name).chmod(0o755)
    return subprocess.run(
        [PASSWORDS, folder / "secrets"], env={"PATH": str(path)}, capture_output=True, text=True, check=False
    )


def status(prometheus: Prometheus, path: str, body: bytes | None, headers: Mapping[str, str]) -> int:
    url = f"http://{prometheus.address}{path}"
    asked = urllib.request.Request(url, body, {**headers, "Content-Type": "application/x-protobuf"})
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_there_is_a_program_to_make_hashes_here() -> None:
    assert "perl" in MAKERS


@pytest.mark.parametrize("maker", MAKERS)
def test_nothing_is_taken_and_nothing_answered_without_the_password(tmp_path: Path, maker: str) -> None:
    made = run_passwords(tmp_path, maker)
    assert made.returncode == 0, made.stderr
    password = (tmp_path / "secrets" / "prometheus_password").read_text()
    called = (tmp_path / "called").read_text()
    assert called
    assert password not in called + made.stdout + made.stderr
    modes = {
        path.name: path.stat().st_mode & 0o777 for path in [tmp_path / "secrets", *(tmp_path / "secrets").iterdir()]
    }
    assert modes == {"secrets": 0o700, "prometheus_password": 0o644, "prometheus_web": 0o644}
    prometheus = Prometheus(tmp_path / "prometheus", NOWHERE, secrets=tmp_path / "secrets")
    try:
        prometheus.service.start()
        write = "/api/v1/otlp/v1/metrics"
        asked = {
            "/api/v1/query?query=up": None,
            "/metrics": None,
            "/api/v1/status/config": None,
            write: incident_gauge("job-7", "2f0c"),
        }
        for path, body in asked.items():
            for headers in (NO_HEADERS, login(""), login(password[:-1])):
                assert status(prometheus, path, body, headers) == 401, (path, headers)
            assert status(prometheus, path, body, prometheus.headers) == 200, path
        assert prometheus.query("whichrank_incident_active")
        check = service("prometheus").raw["healthcheck"]["test"]
        assert check_of_health(prometheus, check) == 0
        (prometheus.config / "health.yml").write_text("basic_auth: {username: whichrank, password: another}\n")
        assert check_of_health(prometheus, check) != 0
    finally:
        prometheus.service.kill()


def check_of_health(prometheus: Prometheus, check: list[str]) -> int:
    words = {
        "127.0.0.1:9090": prometheus.address,
        "/bin/promtool": str(built(PROMTOOL)),
        "/etc/prometheus": str(prometheus.config),
    }
    return subprocess.run([replace(word, words) for word in check[1:]], capture_output=True, check=False).returncode


#: The Collector's own files with OTLP instead of Kafka in front, and none of what lies behind the other signals.
OTLP_IN = """\
receivers: {{otlp: {{protocols: {{http: {{endpoint: "{address}"}}}}}}}}
service:
  telemetry: {{metrics: {{level: none, readers: []}}}}
  pipelines: {{traces: {{receivers: [otlp]}}, metrics: {{receivers: [otlp]}}, logs: {{receivers: [otlp]}}}}
"""


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    started = Prometheus(tmp_path / "prometheus", NOWHERE, secrets=tmp_path / "secrets")
    try:
        started.service.start()
        yield started
    finally:
        started.service.kill()


def test_the_collector_logs_in_by_the_file_that_compose_gives_it(prometheus: Prometheus, tmp_path: Path) -> None:
    """With what stands in its place under compose.open.yaml the same Collector is refused."""
    subprocess.run([DEPLOY / "kafka" / "passwords.sh", tmp_path / "secrets"], check=True, capture_output=True)
    for file in ("users.yaml", "nothing.yaml"):
        receiver, health = (f"127.0.0.1:{port}" for port in free_ports(2))
        config = tmp_path / file
        sources = {name: DEPLOY / "collector" / name for name in ("collector.yaml", file)}
        words = {"prometheus:9090": prometheus.address, "0.0.0.0:13133": health}
        place(config, sources, words | ({"/run/secrets": str(tmp_path / "secrets")} if file == "users.yaml" else {}))
        (config / "otlp.yaml").write_text(OTLP_IN.format(address=receiver))
        collector = Service(
            "the Collector",
            [built_collector(), *(f"--config={config / name}" for name in (*sources, "otlp.yaml"))],
            log=tmp_path / f"{file}.log",
            ready=lambda health=health: answers_http(f"http://{health}/"),  # type: ignore[misc]
        )
        job = f"job-{file}"
        try:
            collector.start()
            asked = urllib.request.Request(
                f"http://{receiver}/v1/metrics", incident_gauge(job, "2f0c"), {"Content-Type": "application/x-protobuf"}
            )
            if file == "users.yaml":
                urllib.request.urlopen(asked, timeout=30).close()
                assert prometheus.query(f'whichrank_incident_active{{whichrank_job_id="{job}"}}')
            else:
                with pytest.raises(urllib.error.HTTPError):
                    urllib.request.urlopen(asked, timeout=30)
                assert "401" in collector.output()
        finally:
            collector.kill()


def test_without_such_a_program_one_line_says_what_to_install_and_it_goes_on_from_there(tmp_path: Path) -> None:
    made = run_passwords(tmp_path)
    assert made.returncode == 1
    (line,) = made.stderr.splitlines()
    assert "install htpasswd" in line
    assert not (tmp_path / "secrets" / "prometheus_web").exists()
    password = (tmp_path / "secrets" / "prometheus_password").read_text()
    assert run_passwords(tmp_path, "perl").returncode == 0
    assert (tmp_path / "secrets" / "prometheus_password").read_text() == password


def test_a_weaker_hash_is_not_taken(tmp_path: Path) -> None:
    """As crypt() of some systems has it: DES, which begins with two characters of the salt."""
    path = tmp_path / "weak"
    path.mkdir()
    for name in NEEDED:
        (path / name).symlink_to(str(shutil.which(name)))
    (path / "perl").write_text("#!/bin/sh\nprintf '$2abcdefghijk'\n")
    (path / "perl").chmod(0o755)
    made = subprocess.run(
        [PASSWORDS, tmp_path / "secrets"], env={"PATH": str(path)}, capture_output=True, text=True, check=False
    )
    assert made.returncode == 1
    assert "bcrypt" in made.stderr


def test_what_is_there_stays_and_half_of_it_is_an_error(tmp_path: Path) -> None:
    assert run_passwords(tmp_path, "perl").returncode == 0
    files = {name: tmp_path / "secrets" / name for name in ("prometheus_password", "prometheus_web")}
    made = {name: file.read_text() for name, file in files.items()}
    assert run_passwords(tmp_path).returncode == 0
    assert {name: file.read_text() for name, file in files.items()} == made
    files["prometheus_password"].unlink()
    half = run_passwords(tmp_path, "perl")
    assert half.returncode == 1
    assert str(files["prometheus_web"]) in half.stderr
    assert files["prometheus_web"].read_text() == made["prometheus_web"]
