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


def program_with_libraries(program: str, root: Path) -> None:
    """A program of this machine, below that root, with what it is linked with."""
    real = Path(shutil.which(program) or "")
    needed = subprocess.run(["ldd", real], capture_output=True, text=True, check=True).stdout
    for path in [str(real), *re.findall(r"(/\S+) \(0x", needed)]:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


@pytest.fixture
def rpm_root(tmp_path: Path) -> Path:
    """A machine's root as far as rpm needs one: it changes into it for the package's scripts, so a shell is there."""
    if shutil.which("rpm") is None or os.geteuid() != 0:
        pytest.skip("rpm is not installed here, or nobody who may change his root (Debian: apt install rpm)")
    made = tmp_path / "rpm-root"
    # The folders that a distribution's own package has.
    for folder in (
        "var/lib/rpm",
        "var/tmp",
        "tmp",
        "etc",
        "run",
        "bin",
        "opt",
        "usr/share/doc",
        "usr/lib/systemd/system",
    ):
        (made / folder).mkdir(parents=True)
    for program in ("sh", "rm", "rmdir"):
        program_with_libraries(program, made)
        if not (made / "bin" / program).exists():
            (made / "bin" / program).symlink_to(shutil.which(program) or "")
    return made


def rpm(root: Path, *words: str | Path) -> str:
    # The database where other distributions have it, and packages that this root knows nothing of taken as given.
    run = subprocess.run(
        ["rpm", f"--root={root}", "--dbpath=/var/lib/rpm", *words], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def own_files(root: Path) -> set[str]:
    """But for rpm's own books."""
    return {name for name in files_of(root) if not name.startswith(("var/lib/rpm", "usr/lib/sysimage/rpm"))}


def test_the_rpm_is_installed_is_whole_and_goes_without_a_trace(packages: Path, root: Path, rpm_root: Path) -> None:
    (package,) = packages.glob("*.rpm")
    assert re.fullmatch(r"whichrank-[\d.]+-1\.\w+\.rpm", package.name)
    before = own_files(rpm_root)
    rpm(rpm_root, "--install", "--nodeps", package)
    # Sizes, modes, sums and owners of all that it brought.
    assert rpm(rpm_root, "--verify", "--nodeps", "whichrank") == ""
    required = rpm(rpm_root, "--query", "--requires", "whichrank")
    assert re.search(r"^/usr/bin/python3\.\d+$", required, re.MULTILINE), required
    assert (rpm_root / "etc/whichrank/whichrank.toml").stat().st_mode & 0o777 == 0o600
    (deb,) = packages.glob("*.deb")
    dpkg(root, "--unpack", deb)
    brought = own_files(rpm_root) - before
    assert {name for name in brought if name.startswith("opt/whichrank")} == {
        name for name in files_of(root) if name.startswith("opt/whichrank")
    }
    # What the agent keeps, and what Python writes beside its modules.
    (rpm_root / "var/lib/whichrank/agent").mkdir(parents=True)
    (rpm_root / "opt/whichrank/lib/written.pyc").touch()
    rpm(rpm_root, "--erase", "whichrank")
    assert own_files(rpm_root) - before == set()


@pytest.mark.parametrize(("unit", "exposure"), [("whichrank-agent.service", 50), ("whichrank-process.service", 20)])
def test_systemd_takes_the_units_as_they_are_installed(packages: Path, root: Path, unit: str, exposure: int) -> None:
    """By systemd's own programs: without it as the first process they read the units and the files these name.

    exposure: tenths on its scale of 10 of what an intruder could do; more than that fails.
    """
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed here")
    (deb,) = packages.glob("*.deb")
    dpkg(root, "--unpack", deb)
    # A unit needs the targets that it names, and the interpreter of the program that it starts.
    targets = Path("/usr/lib/systemd/system")
    for target in targets.glob("*.target"):
        if not target.is_symlink():
            shutil.copy(target, root / "usr/lib/systemd/system")
    said = subprocess.run(
        ["systemd-analyze", "verify", f"--root={root}", "--man=no", "--recursive-errors=no", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stderr) == (0, ""), said.stderr
    program = root / exec_line(root, unit)[0].lstrip("/")
    assert os.access(program, os.X_OK)
    secure = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={exposure}", f"--root={root}", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert secure.returncode == 0, secure.stdout[-2000:] + secure.stderr


def test_a_unit_that_starts_what_is_not_there_is_found(packages: Path, root: Path) -> None:
    """The look above can fail."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed here")
    (deb,) = packages.glob("*.deb")
    dpkg(root, "--unpack", deb)
    unit = root / "usr/lib/systemd/system/whichrank-agent.service"
    unit.write_text(unit.read_text().replace("/opt/whichrank/bin/whichrank", "/opt/whichrank/bin/gone"))
    said = subprocess.run(
        ["systemd-analyze", "verify", f"--root={root}", "--man=no", "--recursive-errors=no", unit.name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode != 0
    assert "gone is not executable" in said.stderr
