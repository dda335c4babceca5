"""Root looks at the folder of a run that a user has made: links, pipes, files that grow, rings of others."""

from __future__ import annotations

import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.attacks.a_judge import Judge
from tests.attacks.attacks_settings import CANARY, PROGRAM, _run
from tests.attacks.node import ring
from tests.attacks.register import Outcome, attack
from tests.attacks.users import EVE, QUINN, fork_as, living_as
from whichrank.commands.run_folder.run_description import RunDescription
from whichrank.commands.run_folder.run_directory import RunDirectory
from whichrank.telemetry.incident import canonical_line, complete_document

INCIDENT = "shadow"  # as an incident's id may be: its evidence is called shadow-...
_KEPT: list[object] = []
_READERS: dict[str, tuple[str, ...]] = {
    "list": ("incidents", "list", "--from", "{}"),
    "show": ("incidents", "show", INCIDENT, "--from", "{}"),
    "export": ("incidents", "export", INCIDENT, "--from", "{}", "--force"),
    "report": ("report", "{}"),
    "replay": ("replay", "{}", "--out", "out-of-replay"),
    "goodput": ("goodput", "{}"),
}


def _document(**more: object) -> dict[str, object]:
    return complete_document(
        {"id": INCIDENT, "revision": 1, "change": "opened", "state": "open", "severity": "page",
         "bucket": "immediate_crash", "kind": "rank_died", "scope": "rank", "times": {"onset": 1.0, "detected": 1.0},
         "job": {"id": "j", "name": "j", "attempt": "a"}, "suspects": [{"rank": 1, "node": "n", "pid": 1}], **more}
    )  # fmt: skip


def a_run(folder: Path, **description: object) -> Path:
    """A run's folder as a user's own run leaves it: run.json, incidents, capture, evidence."""
    judge = Judge(folder / "judge")
    judge.start_job()
    judge.kill_rank()
    judge.runner.close()
    judge.bus.close()
    run = folder / "run"
    run.mkdir(mode=0o755)
    (folder / "judge" / "bus").rename(run / "capture")
    (run / "incidents.jsonl").write_bytes(canonical_line(_document()))
    (run / "evidence").mkdir()
    (run / "evidence" / f"{INCIDENT}-a-rank-00001-1-log_tail.txt").write_text("of the user\n")
    RunDirectory(run).write_run(RunDescription(**description))  # type: ignore[arg-type]
    for path in (run, *run.rglob("*")):
        os.lchown(path, EVE, EVE)
    return run


def _archive_text(folder: Path) -> str:
    text = ""
    for path in folder.glob("incident-*.tar.gz"):
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member)
                text += file.read().decode("utf-8", "replace") if file else ""
    return text


@attack(
    "E201",
    "e",
    "root's `incidents export` of a user's run whose evidence/ is a link to a folder of root's, as is node-1/evidence",
    asked="nothing of root's is in the archive; the user's own evidence is",
    limit_s=60,
)
def evidence_elsewhere(folder: Path) -> Outcome:
    precious = folder / "etc"
    precious.mkdir(mode=0o700)
    (precious / f"{INCIDENT}-").write_text(CANARY)  # as /etc/shadow- is called
    (precious / f"{INCIDENT}-").chmod(0o600)
    run = a_run(folder)
    honest = _run(folder, "incidents", "export", INCIDENT, "--from", str(run), "--force")
    own = "of the user" in _archive_text(folder)
    (run / "evidence").rename(run / "was")
    (run / "evidence").symlink_to(precious)
    (run / "node-1").mkdir()
    (run / "node-1" / "evidence").symlink_to(precious)
    (run / "node-2").symlink_to(folder / "etc")
    done = _run(folder, "incidents", "export", INCIDENT, "--from", str(run), "--force")
    leaked = CANARY in _archive_text(folder)
    return Outcome(
        held=own and honest.returncode == 0 and not leaked and "Traceback" not in done.stderr,
        measured=f"root's file in the archive: {leaked}, the user's own before: {own}",
    )


@attack(
    "E202",
    "e",
    "root acknowledges and labels an incident of a user's run, whose labels.jsonl is a link to a file of root's",
    asked="root's file is not written, nor one made where a link leads to nothing",
    limit_s=60,
)
def labels_elsewhere(folder: Path) -> Outcome:
    precious, absent = folder / "precious", folder / "absent"
    precious.write_text(CANARY)
    run = a_run(folder)
    statuses = []
    for target in (precious, absent):
        (run / "labels.jsonl").unlink(missing_ok=True)
        (run / "labels.jsonl").symlink_to(target)
        done = _run(folder, "incidents", "ack", INCIDENT, "--from", str(run))
        statuses.append((done.returncode, len(done.stderr.splitlines())))
    same = precious.read_text() == CANARY
    return Outcome(
        held=same and not absent.exists() and all(status == (2, 1) for status in statuses),
        measured=f"root's file unchanged: {same}, made: {absent.exists()}, (status, lines) {statuses}",
    )


def _told(folder: Path, run: Path, names: tuple[str, ...], limit_s: float = 15.0) -> dict[str, str]:
    """Of each command: a bad outcome in words."""
    bad = {}
    for name in names:
        words = [word.format(run) for word in _READERS[name]]
        process = subprocess.Popen(
            [*PROGRAM, *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            out, errors = process.communicate(timeout=limit_s)
            if b"Traceback" in errors:
                bad[name] = errors.decode("utf-8", "replace").strip().splitlines()[-1][:80]
            elif CANARY.encode() in out + errors:
                bad[name] = "root's file shown"
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            bad[name] = "no end"
    return bad


def _with(run: Path, name: str, make: Callable[[Path], None]) -> Path:
    """A copy of the run in which one file is another thing."""
    copy = run.with_name(f"{run.name}-{name.replace('/', '-')}")
    subprocess.run(["cp", "-a", run, copy], check=True)
    path = copy / name
    if path.is_dir():
        path.rename(path.with_name("was"))
    else:
        path.unlink(missing_ok=True)
    make(path)
    os.lchown(path, EVE, EVE)
    return copy


_FILES = {
    "incidents.jsonl": ("list", "export", "report"),
    "labels.jsonl": ("list",),
    "run.json": ("export", "replay"),
    "capture/lock": ("replay",),
    "capture/segment-00000001.log": ("report", "goodput"),
}


@attack(
    "E203",
    "e",
    "incidents.jsonl, labels.jsonl, run.json, the capture's lock and segment of a user's run are FIFOs",
    asked="each command ends in seconds, with a line",
    limit_s=240,
    long=True,
)
def pipes_in_a_run(folder: Path) -> Outcome:
    run = a_run(folder)
    segment = next((run / "capture").glob("segment-*")).name
    bad: dict[str, str] = {}
    for name, commands in _FILES.items():
        name = name.replace("segment-00000001.log", segment)
        copy = _with(run, name, os.mkfifo)
        bad |= {f"{command} ({name})": wrong for command, wrong in _told(folder, copy, commands).items()}
    return Outcome(held=not bad, measured=f"{bad or 'all ended'}"[:300])


@attack(
    "E204",
    "e",
    "incidents.jsonl, run.json, the segment of a user's run are links to root's file and to /dev/zero",
    asked="nothing of root's is shown; each command ends in seconds",
    limit_s=240,
    long=True,
)
def links_in_a_run(folder: Path) -> Outcome:
    run = a_run(folder)
    secret = folder / "secret"
    secret.write_text(f'{{"{CANARY}": 1}}\n')
    secret.chmod(0o600)
    segment = f"capture/{next((run / 'capture').glob('segment-*')).name}"
    bad: dict[str, str] = {}
    for target in (secret, Path("/dev/zero")):
        for name, commands in (("incidents.jsonl", ("list",)), ("run.json", ("replay",)), (segment, ("report",))):
            copy = _with(run, name, lambda path, to=target: path.symlink_to(to))  # type: ignore[misc]
            found = _told(folder, copy, commands)
            bad |= {f"{command} ({name} -> {target.name})": wrong for command, wrong in found.items()}
            subprocess.run(["rm", "-r", copy], check=True)
    return Outcome(held=not bad, measured=f"{bad or 'all ended'}"[:300])


@attack(
    "E205",
    "e",
    "run.json of a user's run that was killed names another user's folder of rings; root gives `replay`",
    asked="the other's rings are not read, and all stay",
    limit_s=60,
)
def rings_of_another(folder: Path) -> Outcome:
    theirs = folder / "quinn"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, QUINN, QUINN)
    with living_as(QUINN, lambda: _KEPT.append(ring(theirs, WHICHRANK_JOB_ID="quiet-of-quinn"))):
        run = a_run(folder, ring_directory=str(theirs))
        done = _run(folder, "replay", str(run), "--out", "out", "--json")
        stays = len(list(theirs.glob("*.ring"))) == 1
    read = '"rings_left": 1' in done.stdout
    return Outcome(held=stays and not read and done.returncode in (0, 1),
                   measured=f"read: {read}, there still: {stays}, status {done.returncode}")  # fmt: skip


@attack(
    "E206",
    "e",
    "root gives `replay` in a user's run; the user puts a link in the place of each replay-N as soon as he sees it",
    asked="nothing of root's is written",
    limit_s=120,
    long=True,
)
def replay_led_away(folder: Path) -> Outcome:
    precious, run = folder / "precious", a_run(folder)
    precious.mkdir()
    (precious / "incidents.jsonl").write_text("")

    def swap() -> None:
        number, end = 1, time.monotonic() + 60
        while time.monotonic() < end:
            place = run / f"replay-{number}"
            try:
                os.rename(place, run / f".was-{number}")
                os.symlink(precious, place)
                number += 1
            except OSError:
                continue

    pid = fork_as(EVE, swap)
    try:
        statuses = [_run(folder, "replay", str(run)).returncode for _ in range(5)]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    led = bool((precious / "incidents.jsonl").read_text())
    swapped = len(list(run.glob("replay-*")))
    by_root = [path.name for path in run.rglob("*") if path.lstat().st_uid == 0]
    return Outcome(
        held=not led and not by_root,
        measured=f"led away: {led} of {swapped} swapped, of root: {by_root}, {statuses}"[:200],
    )


@attack(
    "E207",
    "e",
    "the file grows by 50 MB a second while root reads it: `goodput FILE`, `incidents list`, `diagnose job-log`",
    asked="each ends, with bounded memory",
    limit_s=200,
    long=True,
    memory_mb=700,
)
def files_that_grow(folder: Path) -> Outcome:
    run = a_run(folder)
    line = canonical_line(_document())
    bad = {}
    for name, words in {
        "incidents list": ("incidents", "list", "--from", str(run)),
        "goodput": ("goodput", str(run / "incidents.jsonl")),
        "diagnose": ("diagnose", "job-log", str(run / "incidents.jsonl")),
    }.items():
        path = run / "incidents.jsonl"
        path.write_bytes(line * 1000)
        os.chown(path, EVE, EVE)

        def grow(path: Path = path) -> None:
            end, chunk = time.monotonic() + 25, line * 2000
            with open(path, "ab", buffering=0) as file:
                while time.monotonic() < end and file.tell() < 3 << 30:
                    file.write(chunk)
                    time.sleep(len(chunk) / 50e6)

        pid = fork_as(EVE, grow)
        began = time.monotonic()
        try:
            process = subprocess.Popen(
                [*PROGRAM, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                process.wait(timeout=35)
                if process.returncode < 0:
                    bad[name] = f"killed by {-process.returncode}"
                elif time.monotonic() - began > 20:
                    bad[name] = f"{time.monotonic() - began:.0f} s"
            except subprocess.TimeoutExpired:
                process.kill()
                bad[name] = "no end"
            process.wait()
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return Outcome(held=not bad, measured=f"{bad or 'all ended in time'}")
