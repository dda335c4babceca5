"""Prometheus as docker-compose.yml has it takes nothing and answers nothing without its user's password."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.stack.parts.compose import service
from tests.stack.parts.go_programs import built
from tests.stack.parts.placing import DEPLOY, replace
from tests.stack.parts.promtool import PROMTOOL
from tests.stack.parts.service import NO_HEADERS
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


def test_what_is_there_stays_and_half_of_it_is_told(tmp_path: Path) -> None:
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
