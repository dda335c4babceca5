"""Attacks with settings files of others, and what others may read of secrets and of a run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from tests.attacks.register import Outcome, attack
from tests.attacks.users import EVE, QUINN, fork_as

PROGRAM = (sys.executable, "-c", "from whichrank.commands.entry import main; main()")
CANARY = "canary-of-a-secret-4711"


def _run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WHICHRANK_")} | more
    return subprocess.run(
        [*PROGRAM, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=80, check=False
    )


def _eves_folder(folder: Path, text: str) -> Path:
    place = folder / "eve"
    place.mkdir()
    (place / "whichrank.toml").write_text(text)
    for each in (place / "whichrank.toml", place):
        os.chown(each, EVE, EVE)
    return place


@attack("E4", "e", "root gives `whichrank respond --from . --once` in a user's folder that holds a whichrank.toml",
        asked="settings of others are not taken", limit_s=90)  # fmt: skip
def settings_of_the_folder(folder: Path) -> Outcome:
    touched = folder / "touched"
    place = _eves_folder(
        folder,
        f'respond_act = true\nrespond_hooks = "slurm"\nrespond_slurm_requeue = ["/bin/sh", "-c", "touch {touched}"]\n',
    )
    shown = _run(place, "respond", "--from", ".", "--once", "--state", str(folder / "state"), "--print-config")
    return Outcome(
        held="respond_act = false" in shown.stdout and str(touched) not in shown.stdout and not touched.exists(),
        measured=f"status {shown.returncode}, respond_act from "
        + ("the user's file" if "respond_act = true" in shown.stdout else "nowhere: a dry run"),
    )


@attack("E4b", "e", "the same with --act of root's own: the user's folder says that a job is to be requeued",
        asked="nothing is done by a user's file", limit_s=90)  # fmt: skip
def incidents_of_the_folder(folder: Path) -> Outcome:
    place = _eves_folder(folder, "")
    (place / "incidents.jsonl").write_text("{}\n")
    os.chown(place / "incidents.jsonl", EVE, EVE)
    done = _run(
        place,
        "respond",
        "--from",
        ".",
        "--once",
        "--act",
        "--hooks",
        "slurm",
        "--set",
        "respond_cluster_nodes=8",
        "--state",
        str(folder / "s"),
    )
    said = done.stderr.strip().splitlines()
    return Outcome(held=done.returncode == 2 and len(said) == 1 and str(EVE) in done.stderr,
                   measured=f"status {done.returncode}: {said[0][:80] if said else ''}")  # fmt: skip


@attack("E4c", "e", "root gives `whichrank run` in a user's folder, and in his own where everybody may write the file",
        asked="refused in one line", limit_s=90)  # fmt: skip
def run_in_a_users_folder(folder: Path) -> Outcome:
    place = _eves_folder(folder, 'out = "/tmp/elsewhere"\n')
    first = _run(place, "run", "--print-config", "--", "true")
    (folder / "whichrank.toml").write_text('level = "off"\n')
    (folder / "whichrank.toml").chmod(0o666)
    second = _run(folder, "run", "--print-config", "--", "true")
    lines = [done.stderr.strip().splitlines() for done in (first, second)]
    return Outcome(
        held=[first.returncode, second.returncode] == [2, 2] and [len(each) for each in lines] == [1, 1],
        measured=f"statuses {first.returncode} and {second.returncode}, {len(lines[0])} and {len(lines[1])} lines",
    )


@attack("E1", "e", "secrets as flags: --judge-secret, --set kafka_password, --set judge_secret", asked="not in `ps`",
        limit_s=90)  # fmt: skip
def secrets_in_ps(folder: Path) -> Outcome:
    ways = (["--judge-secret", CANARY], ["--set", f"kafka_password={CANARY}"], ["--set", f"judge_secret={CANARY}"])
    done = [_run(folder, "run", *way, "--", "true") for way in ways]
    file = folder / "secret"
    file.write_text(CANARY)
    file.chmod(0o600)
    by_file = _run(folder, "run", "--judge-secret-file", str(file), "--print-config", "--", "true")
    told = sum(CANARY in each.stderr + each.stdout for each in (*done, by_file))
    statuses = [each.returncode for each in done]
    return Outcome(held=statuses == [2, 2, 2] and by_file.returncode == 0 and not told,
                   measured=f"statuses {statuses}, by file {by_file.returncode}; told {told} times")  # fmt: skip


@attack("E2", "e", "a password in a settings file with mode 0644, 0640 and 0600", asked="refused but for 0600",
        limit_s=90)  # fmt: skip
def secrets_that_others_read(folder: Path) -> Outcome:
    config = folder / "settings.toml"
    config.write_text(f'kafka_password = "{CANARY}"\n')
    statuses = []
    for mode in (0o644, 0o640, 0o600):
        config.chmod(mode)
        statuses.append(
            _run(folder, "agent", "--kafka", "127.0.0.1:9", "--config", str(config), "--print-config").returncode
        )
    return Outcome(held=statuses == [2, 2, 0], measured=f"statuses {statuses}")


@attack("E5", "e", "another user reads a run's folder: a new one, and one that was there with 0755",
        asked="only its user reads it; the command's umask stays", limit_s=120)  # fmt: skip
def run_folder(folder: Path) -> Outcome:
    old, new, made = folder / "old", folder / "new", folder / "made"
    old.mkdir(mode=0o755)
    for out in (old, new):
        _run(folder, "run", "--out", str(out), "--", "sh", "-c", f"umask > {made}")
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (new, *old.rglob("*")) if not each.is_symlink()]
    open_ones = [oct(mode) for mode in modes if mode & 0o077]

    def read() -> None:
        for each in ("run.json", "incidents.jsonl"):
            for out in (old, new):
                try:
                    (out / each).read_bytes()
                except PermissionError:
                    continue
                except FileNotFoundError:
                    continue
                raise SystemExit(1)

    _, status = os.waitpid(fork_as(QUINN, read), 0)
    umask = made.read_text().strip()
    measured = f"{len(modes)} files, open to others {len(open_ones)}, the command's umask {umask}"
    return Outcome(held=not open_ones and status == 0 and umask == "0022" and len(modes) > 2, measured=measured)
