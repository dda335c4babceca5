"""What counts as the code that a run follows from: all that a run loads, and nothing that it never comes near."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import whichrank
from whichrank.evaluation.bench.code_closure import code_closure
from whichrank.evaluation.bench.kept_runs import decisive_files

PACKAGE = Path(whichrank.__file__).resolve().parent
#: A run with its score, in this process; then every module of ours that has been loaded.
RUN = """
import json
import sys
from whichrank.evaluation.bench.matrix import score_lines
from whichrank.evaluation.bench.one_run import AskedRun, run
asked = AskedRun(scenario=sys.argv[1], ranks=16, seed=100003)
measured = run(asked)
assert not measured.problem
score_lines(measured, measured.revisions)
print(json.dumps([module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "whichrank"]))
"""


def files_below(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_imports_are_followed_at_any_depth_and_data_beside_them_counts(tmp_path: Path) -> None:
    package = files_below(
        tmp_path / "ours",
        {
            "__init__.py": "def init():\n    from .hooks import start\n",
            "hooks/__init__.py": "start = 1\n",
            "run.py": "from .near import one\nimport ours.far.deep\nfrom ours.named import thing\nimport json\n",
            "near/__init__.py": "from . import by_name\n",
            "near/by_name.py": "def late():\n    if late:\n        from ..late import later as name\n",
            "near/one.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..types import T\n",
            "near/table.toml": "",
            "near/rules/a.toml": "",
            "near/__pycache__/one.cpython-311.pyc": "",
            "near/apart/__init__.py": "",
            "near/apart/other.toml": "",
            "far/__init__.py": "",
            "far/deep.py": "from .. import __version__\n",
            "far/unused.py": "",
            "named.py": "",
            "late/__init__.py": "",
            "late/later.py": "",
            "types.py": "",
            "settings.toml": "",
        },
    )
    found = sorted(str(path.relative_to(package)) for path in code_closure([package / "run.py"], package))
    assert found == [
        "far/__init__.py",
        "far/deep.py",
        "late/__init__.py",
        "late/later.py",
        "named.py",
        "near/__init__.py",
        "near/by_name.py",
        "near/one.py",
        "near/rules/a.toml",
        "near/table.toml",
        "run.py",
    ]


def source_of(module: Path) -> Path:
    return module.with_name(f"{module.name.partition('.')[0]}.c") if module.suffix == ".so" else module


@pytest.mark.parametrize("scenario", ["exception", "gpu_off_the_bus"])
def test_all_that_a_run_loads_is_counted(scenario: str) -> None:
    done = subprocess.run([sys.executable, "-c", RUN, scenario], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    loaded = {source_of(Path(file)) for file in json.loads(done.stdout)}
    bench = PACKAGE / "evaluation" / "bench"
    asks_and_keeps = {path for path in loaded if path.parent == bench} - decisive_files()
    assert {path.name for path in asks_and_keeps} >= {"matrix.py", "kept_runs.py"}
    assert loaded - decisive_files() - asks_and_keeps - {PACKAGE / "__init__.py"} == set()


def test_what_no_run_comes_near_is_not_counted() -> None:
    counted = {str(path.relative_to(PACKAGE)) for path in decisive_files()}
    assert {
        "agents/collectors/processes/wait_sites.tsv",
        "evaluation/bench/one_run.py",
        "diagnosis/goodput/account.py",
        "processors/cluster/operator.py",
        "simulator/scoring/run_score.py",
        "telemetry/_otlp_scan.c",
    } <= counted
    never = (
        "agents/job_agent.py",
        "commands/embedded/embedded_watch.py",
        "transport/kafka.py",
        "evaluation/bench/bench_report.py",
        "__init__.py",
    )
    assert counted.isdisjoint(never)
    assert not any(name.startswith(("instrumentation/", "grafana/", "tests/", "build/")) for name in counted)
