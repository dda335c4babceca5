"""What loading a part of whichrank costs the process that loads it: each place imports only what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Packages that must not come along where nobody asked for them.
HEAVY = ("torch", "numpy", "google.protobuf", "opentelemetry", "pydantic", "typer", "rich", "psutil", "sqlite3")

MODULES_SCRIPT = """
import sys
before = set(sys.modules)
{statement}
print(",".join(sorted(set(sys.modules) - before)))
"""


def loaded_by(statement: str) -> set[str]:
    """Modules that a fresh interpreter has after the statement and had not before."""
    done = subprocess.run(
        [sys.executable, "-c", MODULES_SCRIPT.format(statement=statement)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.strip().split(","))


def heavy(modules: set[str]) -> set[str]:
    return {package for package in HEAVY if any(m == package or m.startswith(package + ".") for m in modules)}


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import whichrank", set()),
        ("import whichrank.telemetry", set()),
        (
            "import whichrank.telemetry.vocabulary, whichrank.telemetry.ring_layout, whichrank.telemetry.ring_root, "
            "whichrank.telemetry.user_code, whichrank.telemetry.checkpoint_states, whichrank.telemetry.file_systems",
            set(),
        ),
        ("import whichrank.telemetry.attributes, whichrank.telemetry.incident", set()),
        ("import whichrank.transport.embedded", set()),
        ("import whichrank.commands.multi_node.peer_setup", set()),
        ("import whichrank.telemetry.otlp", {"numpy", "google.protobuf", "opentelemetry"}),
        ("import whichrank.processors.operator", {"numpy"}),
        ("import whichrank.processors.runner", {"numpy", "google.protobuf", "opentelemetry", "sqlite3"}),
        (
            "import whichrank.processors.job.operator, whichrank.processors.cluster.operator",
            {"numpy"},
        ),
    ],
)
def test_a_part_brings_only_what_it_needs(statement: str, allowed: set[str]) -> None:
    assert heavy(loaded_by(statement)) <= allowed


def test_importing_whichrank_brings_one_file_of_ours() -> None:
    assert {m for m in loaded_by("import whichrank") if m.startswith("whichrank")} == {"whichrank"}


def test_the_package_of_the_vocabulary_brings_one_file_more() -> None:
    ours = {m for m in loaded_by("import whichrank.telemetry") if m.startswith("whichrank")}
    assert ours == {"whichrank", "whichrank.telemetry"}


def test_init_brings_nothing_of_the_stream_into_a_training_process() -> None:
    brought = loaded_by(
        "import torch, torch.distributed, tempfile, os, sys\n"
        "os.environ['WHICHRANK_DIR'] = tempfile.mkdtemp()\n"
        "before = set(sys.modules)\n"
        "import whichrank\n"
        "whichrank.init()"
    )
    assert any(m.startswith("whichrank.instrumentation") for m in brought), "init() did nothing"
    assert heavy(brought) == set()
    ours = {m.split(".")[1] for m in brought if m.count(".") and m.startswith("whichrank.")}
    assert ours <= {"instrumentation", "telemetry"}
    telemetry = {m for m in brought if m.startswith("whichrank.telemetry.")}
    assert telemetry <= {
        f"whichrank.telemetry.{name}"
        for name in (
            "checkpoint_states",
            "emergency_words",
            "file_systems",
            "ring_layout",
            "ring_root",
            "user_code",
            "vocabulary",
        )
    }


def test_a_heavy_import_is_noticed() -> None:
    assert heavy(loaded_by("import sqlite3")) == {"sqlite3"}
