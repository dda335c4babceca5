"""Further settings and folders of others: links, devices, variables that sudo kept, files without end."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.attacks.attacks_settings import CANARY, _eves_folder, _run
from tests.attacks.register import Outcome, attack
from tests.attacks.users import EVE


@attack(
    "E101",
    "e",
    "the file that --config names is a link into a user's folder, and a file in a folder that he may write",
    asked="commands of hooks are not taken from it",
    limit_s=120,
    long=True,
)
def config_of_a_user(folder: Path) -> Outcome:
    text = 'respond_hooks = "slurm"\nrespond_slurm_requeue = ["/bin/sh", "-c", "id"]\n'
    place = _eves_folder(folder, text)
    link = folder / "settings.toml"
    link.symlink_to(place / "whichrank.toml")
    inside = place / "roots.toml"
    inside.write_text(text)
    taken = []
    held = folder / "held"
    held.mkdir()
    (held / "to").symlink_to(place, target_is_directory=True)
    for path in (link, inside, held / "to" / "roots.toml", held / "to" / ".." / "eve" / "roots.toml"):
        done = _run(
            folder,
            "respond",
            "--config",
            str(path),
            "--from",
            str(folder),
            "--once",
            "--state",
            str(folder / "s"),
            "--print-config",
        )
        lines = len(done.stderr.strip().splitlines())
        taken.append((done.returncode == 0 and '"id"' in done.stdout) or (done.returncode, lines) != (2, 1))
    own = held / "own.toml"
    own.write_text(text)
    done = _run(folder, "respond", "--config", str(own), "--from", str(folder), "--once", "--print-config",
                "--state", str(folder / "s"))  # fmt: skip
    own_holds = '"id"' in done.stdout
    return Outcome(
        held=not any(taken) and own_holds,
        measured=f"commands taken through links, from the folder: {taken}; from root's own: {own_holds}",
    )


@attack("E102", "e", "commands of hooks in variables, as `sudo -E` keeps them", asked="not taken, one line", limit_s=60)
def hooks_by_variable(folder: Path) -> Outcome:
    done = _run(
        folder,
        "respond",
        "--from",
        str(folder),
        "--once",
        "--state",
        str(folder / "s"),
        "--print-config",
        WHICHRANK_RESPOND_SLURM_REQUEUE='["/bin/sh", "-c", "id"]',
        WHICHRANK_RESPOND_HOOKS="slurm",
        WHICHRANK_RESPOND_ACT="true",
    )
    taken = '"id"' in done.stdout
    lines = len(done.stderr.strip().splitlines())
    return Outcome(held=not taken and lines <= 1, measured=f"taken: {taken}, status {done.returncode}, {lines} lines")


@attack(
    "E103",
    "e",
    "settings of 100 MB, 20,000 brackets deep, of NUL bytes, not UTF-8; a FIFO, a device, a folder",
    asked="one line each, at once",
    limit_s=200,
    long=True,
)
def settings_without_end(folder: Path) -> Outcome:
    files = {
        "large": ('out = "' + "x" * (100 << 20)).encode(),
        "deep": b"out = " + b"[" * 20_000,
        "nul": bytes(10_000),
        "latin": b'out = "\xff\xfe"',
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    told = {}
    for name in (*files, "fifo", "folder", "/dev/zero"):
        began = time.monotonic()
        try:
            done = _run(folder, "run", "--config", str(folder / name), "--print-config", "--", "true")
            lines = len(done.stderr.strip().splitlines())
            told[name] = "ok" if done.returncode == 2 and lines == 1 else f"status {done.returncode}, {lines} lines"
        except (subprocess.TimeoutExpired, MemoryError) as error:
            told[name] = type(error).__name__
        if time.monotonic() - began > 30:
            break
    return Outcome(held=set(told.values()) == {"ok"} and len(told) == 7, measured=str(told))


@attack(
    "E104",
    "e",
    "--judge-secret-file is a FIFO, a device, 0644, empty, a link to another user's file",
    asked="one line each; the secret is not told",
    limit_s=200,
    long=True,
)
def secret_files(folder: Path) -> Outcome:
    for name, mode, owner in (("open", 0o644, 0), ("his", 0o600, EVE), ("group", 0o640, 0)):
        (folder / name).write_text(CANARY)
        (folder / name).chmod(mode)
        os.chown(folder / name, owner, owner)
    (folder / "empty").touch(mode=0o600)
    (folder / "large").write_bytes(b"x" * (64 << 10))
    (folder / "large").chmod(0o600)
    (folder / "link").symlink_to(folder / "his")
    os.mkfifo(folder / "fifo", 0o600)
    told = {}
    names = ("open", "his", "group", "empty", "large", "link", "fifo", "/dev/zero")
    for name in names:
        try:
            done = _run(folder, "run", "--judge-secret-file", str(folder / name), "--print-config", "--", "true")
            lines = len(done.stderr.strip().splitlines())
            refused = done.returncode == 2 and lines == 1 and CANARY not in done.stdout + done.stderr
            told[name] = "ok" if refused else f"status {done.returncode}, {lines} lines"
        except subprocess.TimeoutExpired:
            told[name] = "no end"
            break
    # As the kubelet puts a Secret there, with its usual mode.
    (folder / "volume" / "..2026").mkdir(parents=True)
    (folder / "volume" / "..2026" / "secret").write_text(CANARY)
    (folder / "volume" / "..data").symlink_to("..2026")
    (folder / "volume" / "secret").symlink_to("..data/secret")
    done = _run(folder, "run", "--judge-secret-file", "volume/secret", "--print-config", "--", "true")
    told["of Kubernetes"] = f"taken: {done.returncode == 0}"
    refused = set(told.values()) == {"ok", "taken: True"} and len(told) == len(names) + 1
    return Outcome(held=refused and told["of Kubernetes"] == "taken: True", measured=str(told))


@attack(
    "E105",
    "e",
    "root's `run --out` names a folder that a user has made, full of links to root's files and folders, and to nothing",
    asked="nothing of root's is written",
    limit_s=90,
)
def out_of_a_user(folder: Path) -> Outcome:
    precious, place, absent = folder / "precious", folder / "place", folder / "absent"
    precious.write_text(CANARY)
    place.mkdir()
    names = ("incidents.jsonl", "run.json", "state.sqlite", "labels.jsonl", "plans.jsonl", "evidence", "capture", "bus",
             "whichrank.log", "report.html", "losses.json", "stderr.log")  # fmt: skip
    ways = {
        "to a file": dict.fromkeys(names, precious),
        "state alone": {"state.sqlite": precious},
        "to a folder": {"capture": place, "evidence": place},
        "to nothing": {"incidents.jsonl": absent, "run.json": absent, "state.sqlite": absent},
    }
    led, statuses = [], []
    for number, (way, links) in enumerate(ways.items()):
        out = folder / f"out-{number}"
        out.mkdir()
        os.chown(out, EVE, EVE)
        for name, target in links.items():
            (out / name).symlink_to(target)
        statuses.append(_run(folder, "run", "--out", str(out), "--", "true").returncode)
        same = precious.read_text() == CANARY and (precious.stat().st_mode & 0o777) == 0o644
        if not same or absent.exists() or any(place.iterdir()):
            led.append(way)
    return Outcome(held=not led and not any(statuses), measured=f"statuses {statuses}, led elsewhere: {led}")


@attack(
    "E106",
    "e",
    "job and node names full of braces and format words, in hooks' templates",
    asked="as they are, or refused",
)
def names_in_templates(folder: Path) -> Outcome:
    from whichrank.commands.respond.hooks.slurm import Commands, Slurm
    from whichrank.commands.respond.planning.acts import Act, HookOperation
    from whichrank.telemetry.incident_reading import read_incident
    from whichrank.telemetry.response_outcomes import Outcome as HookOutcome

    made = folder / "made"
    command = ["/bin/sh", "-c", f'printf "%s\\n" "$@" >> {made}', "x", "{job}", "{reason}"]
    node = ["/bin/sh", "-c", f'printf "%s\\n" "$@" >> {made}', "x", "{node}", "{reason}"]
    hook = Slurm(Commands(drain=node, undrain=node, requeue=command, show=()))
    bad = [
        "{0.__class__}",
        "%s%n",
        "{reason}",
        "--help",
        "-9",
        "4711;id",
        "$(id)",
        "4711\n4712",
        "node[1-9]",
        "٤٧١١",
        "ALL",
        "4711_",
        "4711.0",
        "",
        "9" * 400,
    ]
    document = read_incident({"id": "0123456789abcdef", "revision": 1})
    more: dict[str, Any] = {
        "incident": "0123456789abcdef",
        "action": "restart",
        "revision": 1,
        "job": "j",
        "attempt": "a",
        "document": document,
    }
    done = []
    for target in bad:
        for operation in (HookOperation.RESTART_JOB, HookOperation.DRAIN_NODE):
            act = Act(
                hook="slurm", operation=operation, target=target, reason="{0.__class__} %s $(id) {job}\nline", **more
            )
            hook.describe(act)
            is_a_node = operation is HookOperation.DRAIN_NODE and target == "4711.0"  # as nodes may be called
            if hook.do(act).outcome is not HookOutcome.REFUSED and not is_a_node:
                done.append((operation.value, target))
    hook.do(
        Act(
            hook="slurm",
            operation=HookOperation.RESTART_JOB,
            target="4711",
            **more,
            reason="{0.__class__} %s $(id) {job}",
        )
    )
    said = (
        made.read_text().replace("4711.0\n{0.__class__} %s $(id) {job}\nline\n", "").splitlines()
        if made.exists()
        else []
    )
    right = said[:2] == ["4711", "{0.__class__} %s $(id) {job}"] or (
        said[:1] == ["4711"] and "uid=" not in "".join(said)
    )
    return Outcome(held=not done and right, measured=f"done with: {done}; the true one: {said}"[:200])
