"""Who could have written what a job's findings rest on, by the names of their signals."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from whichrank import processors
from whichrank.telemetry.trust import Trust, trust_of_signal

#: What the judge itself concludes or was told, and nobody measured.
OF_THE_JUDGE = {"resolved", "job.signalled"}


@pytest.mark.parametrize(
    ("signal", "trust"),
    [
        ("rank.exit", Trust.AGENT),
        ("rank.exception", Trust.USER),
        ("rank.joining.timeout", Trust.USER),
        ("peer.silent", Trust.AGENT),
        ("process.motion", Trust.AGENT),
        ("steps.self_time", Trust.USER),
        ("kernel.run_delay", Trust.USER),
        ("kernel.xid_79", None),
        ("resolved", None),
        ("", None),
    ],
)
def test_the_longest_beginning_of_the_name_counts(signal: str, trust: Trust | None) -> None:
    assert trust_of_signal(signal) is trust


def test_every_signal_of_a_job_s_findings_has_a_class_or_is_the_judge_s() -> None:
    names = {name for path in (Path(processors.__path__[0]) / "job").rglob("*.py") for name in signals_of(path)}
    assert len(names) > 20
    assert {name for name in names if trust_of_signal(name) is None} == OF_THE_JUDGE


def signals_of(path: Path) -> Iterator[str]:
    """The first argument of each call of ``evidence(...)``: of a text with parts filled in, what stands before them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "evidence":
            match node.args[0]:
                case ast.Constant(value=str(text)):
                    yield text
                case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
                    yield text.rstrip(".")
