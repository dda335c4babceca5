"""The packages: built, the deb installed by the real dpkg below a folder, the agent run as its unit says, purged again.

Nothing of this machine is touched: dpkg has the folder as its root, and the agent runs in a mount namespace in which
the folder is the root, with this machine's programs and libraries beside what was installed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.stack.parts.go_programs import NFPM, built
from tests.stack.parts.placing import DEPLOY, REPOSITORY
from tests.stack.parts.service import eventually

BUILD_TIMEOUT_S = 900
#: Of this machine, into the agent's root: programs, libraries, kernel.
BESIDE = ("bin", "sbin", "lib", "lib32", "lib64", "usr", "proc", "dev", "sys")
ETC = ("passwd", "group", "hosts", "nsswitch.conf", "ld.so.cache")
ENTER = """\
set -e
root=$1
shift
for name in $BESIDE; do
  if [ -L "/$name" ]; then
    cp -P "/$name" "$root/"
  elif [ -d "/$name" ]; then
    mkdir -p "$root/$name"
    mount --rbind "/$name" "$root/$name"
  fi
done
exec chroot "$root" "$@"
"""


def own_python() -> tuple[list[str], dict[str, str]]:
    """What build.sh is told where the distribution's Python is none that will do: the one that these tests run on."""
    usual = Path("/usr/bin/python3")
    asked = [str(usual), "-c", "import ctypes, ssl, sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))"]
    if usual.exists() and subprocess.run(asked, capture_output=True, check=False).returncode == 0:
        return [], {}
    real = Path(sys.executable).resolve()
    return [f"{sys.version_info.major}.{sys.version_info.minor}"], {"INTERPRETER": str(real)}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both."""
    folder = tmp_path_factory.mktemp("packages")
    python, variables = own_python()
    made = subprocess.run(
        [DEPLOY / "packages/build.sh", folder, *python],
        env={**os.environ, **variables, "NFPM": str(built(NFPM)), "UV": str(Path(sys.executable).with_name("uv"))},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine's root as far as dpkg needs one."""
    if shutil.which("dpkg") is None:
        pytest.skip("dpkg is not installed here")
    made = tmp_path / "root"
    for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log", "tmp", "etc", "run"):
        (made / folder).mkdir(parents=True)
    (made / "var/lib/dpkg/status").touch()
    (made / "var/lib/dpkg/available").touch()
    for name in ETC:
        if Path("/etc", name).exists():
            shutil.copy(Path("/etc", name), made / "etc" / name)
    return made


def dpkg(root: Path, *words: str | Path) -> str:
    run = subprocess.run(
        [
            *("dpkg", f"--root={root}", "--force-script-chrootless", "--force-not-root", "--force-depends"),
            *("--force-bad-path", f"--log={root}/var/log/dpkg.log", *words),
        ],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def files_of(root: Path) -> set[str]:
    """But for dpkg's own books."""
    found = {str(path.relative_to(root)) for path in root.rglob("*")}
    return {name for name in found if not name.startswith(("var/lib/dpkg", "var/log/dpkg.log"))}


def exec_line(root: Path, unit: str) -> list[str]:
    text = (root / "usr/lib/systemd/system" / unit).read_text()
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return shlex.split(parser["Service"]["ExecStart"])


def test_the_deb_is_installed_runs_by_its_unit_and_goes_without_a_trace(packages: Path, root: Path) -> None:
    (deb,) = packages.glob("*.deb")
    before = files_of(root)
    dpkg(root, "--install", deb)
    assert dpkg(root, "--verify", "whichrank") == ""
    assert os.readlink(root / "usr/bin/whichrank") == "/opt/whichrank/bin/whichrank"
    settings = root / "etc/whichrank/whichrank.toml"
    assert settings.stat().st_mode & 0o777 == 0o600
    with settings.open("a") as more:
        more.write('kafka = "127.0.0.1:1"\ncollect = "none"\n')

    agent = exec_line(root, "whichrank-agent.service")
    assert agent[:2] == ["/opt/whichrank/bin/whichrank", "agent"]
    log = root.with_name("agent.log")
    beside = [*BESIDE, *({Path(sys.base_prefix).parts[1]} - {"usr"} if own_python()[1] else ())]
    # In a namespace, so that what is mounted is gone with it; as root of one of its own where we are not root.
    enter: list[str | Path] = [
        "unshare",
        "--mount",
        *([] if os.geteuid() == 0 else ["--map-root-user"]),
        "sh",
        "-c",
        ENTER,
        "enter",
        root,
    ]
    with log.open("wb") as said:
        running = subprocess.Popen(
            [*enter, *agent],
            stdout=said,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "BESIDE": " ".join(beside)},
        )
    try:
        eventually(lambda: "watches" in log.read_text() or running.poll() is not None, what="it starts", timeout_s=60)
        assert "publishes to Kafka at 127.0.0.1:1" in log.read_text(), log.read_text()
        began = time.monotonic()
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0, log.read_text()
        assert time.monotonic() - began < 15
    finally:
        running.kill()
    assert (root / "var/lib/whichrank/agent").is_dir(), "what it keeps"

    dpkg(root, "--remove", "whichrank")
    assert settings.exists(), "a removal keeps the settings"
    dpkg(root, "--purge", "whichrank")
    for name in beside:  # what the namespace was made of: links, and folders that are empty outside of it
        path = root / name
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            path.rmdir()
    assert files_of(root) == before


def test_the_processors_unit_starts_what_there_is(packages: Path, root: Path) -> None:
    """Its variables are systemd's; without systemd its words are tried with folders in their place."""
    (deb,) = packages.glob("*.deb")
    dpkg(root, "--unpack", deb)
    words = exec_line(root, "whichrank-process.service")
    settings = root.with_name("settings.toml")
    settings.write_text('kafka = "127.0.0.1:1"\n')
    places = {"${CREDENTIALS_DIRECTORY}/settings": str(settings), "${STATE_DIRECTORY}": str(root.with_name("state"))}
    command = [places.get(word, word) for word in words]
    assert command[0] == "/opt/whichrank/bin/whichrank"
    shown = subprocess.run(
        [sys.executable, "-m", "whichrank.commands.main", *command[1:], "--print-config"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "127.0.0.1:1" in shown.stdout


def test_the_rpm_is_one_and_holds_as_much(packages: Path) -> None:
    """No rpm is on this machine to install it with: its lead and its name are looked at."""
    (rpm,) = packages.glob("*.rpm")
    (deb,) = packages.glob("*.deb")
    assert rpm.read_bytes()[:4] == b"\xed\xab\xee\xdb"
    assert re.fullmatch(r"whichrank-[\d.]+-1\.\w+\.rpm", rpm.name)
    assert 0.5 < rpm.stat().st_size / deb.stat().st_size < 2
