"""Records flow one way, and so do imports: who may import whom, as ARCHITECTURE.md has it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: folder -> (folders of whichrank, other packages) that it may import at module level or inside functions.
#: The standard library is free for all.
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "telemetry": (set(), {"numpy", "google", "opentelemetry", "tomli"}),
    "diagnosis": ({"telemetry"}, {"numpy", "tomli"}),
    "instrumentation": (
        {
            "telemetry.checkpoint_states",
            "telemetry.emergency_words",
            "telemetry.file_systems",
            "telemetry.injection_words",
            "telemetry.ring_layout",
            "telemetry.ring_root",
            "telemetry.user_code",
            "telemetry.vocabulary",
        },
        {"torch"},
    ),
    # What training scripts call; of the instrumentation how a rank's ring is told.
    "checkpoint": (
        {"telemetry.checkpoint_states", "telemetry.ring_layout", "telemetry.vocabulary", "instrumentation"},
        {"torch"},
    ),
    "agents": ({"telemetry", "transport", "diagnosis"}, {"numpy", "psutil", "opentelemetry", "pynvml"}),
    "transport": ({"telemetry"}, {"kafka", "confluent_kafka", "cryptography"}),
    "processors": ({"telemetry", "diagnosis"}, {"numpy", "tomli"}),
    # Of the agents what reduces and words what was seen; neither rings, nor processes, nor the way to a bus.
    "simulator": (
        {
            "telemetry",
            "agents.base",
            "agents.collectors",
            "agents.node_reports",
            "agents.privacy",
            "agents.ranks.drain",
            "agents.reduction",
            "agents.rings.ring_events",
        },
        {"numpy"},
    ),
    # Dashboards and rules are made of names alone; those of others' metrics stand in the crosswalk.
    "grafana": ({"telemetry", "diagnosis.crosswalk"}, {"grafana_client", "yaml"}),
    "commands": (
        {"telemetry", "instrumentation", "diagnosis", "agents", "transport", "processors", "grafana"},
        {
            "compression",  # Python's own from 3.14 on
            "jinja2",
            "markupsafe",
            "numpy",
            "psutil",
            "opentelemetry",
            "prometheus_client",
            "pyarrow",
            "pydantic",
            "pydantic_settings",
            "rich",
            "tomli",
            "typer",
            "torch",
            "urllib3",
            "zstandard",
        },
    ),
    # What judges the product: nothing of the product may know it.
    "evaluation": (
        {"telemetry", "diagnosis", "agents", "transport", "processors", "simulator", "grafana", "commands"},
        {"kafka", "numpy", "opentelemetry", "prometheus_client", "pyarrow", "pydantic", "rich", "setuptools", "typer"},
    ),
}
#: Runners are the only processors that see the bus, that on Flink among them.
RUNNER_MAY_IMPORT = {"transport"}
FLINK = "processors/flink/"
#: What a package of its own, in an environment of its own, is for: nothing else may need it.
ONLY_IN = {"processors/flink/job_graph.py": {"pyflink"}, "processors/flink/keyed_functions.py": {"pyflink"}}


def imports_of(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import; names inside whichrank start with "whichrank."."""
    package = ("whichrank", *path.relative_to(root).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def is_allowed(name: str, folder: str, own: set[str], others: set[str]) -> bool:
    parts = name.split(".")
    if name == "whichrank":  # imports nothing by itself
        return True
    if parts[0] != "whichrank":
        return parts[0] in sys.stdlib_module_names or parts[0] in others
    if len(parts) > 1 and parts[1] == folder:
        return True
    inside = name.removeprefix("whichrank.")
    return any(inside == allowed or inside.startswith(allowed + ".") for allowed in own)


def upward_imports(folder: str, root: Path = ROOT) -> list[str]:
    own, others = ALLOWED[folder]
    found = []
    for path in sorted((root / folder).rglob("*.py")):
        relative = path.relative_to(root)
        is_runner = path.name.startswith("runner") or str(relative).startswith(FLINK)
        extra = RUNNER_MAY_IMPORT if folder == "processors" and is_runner else set()
        found += [
            f"{relative}:{line} imports {name}"
            for line, name in imports_of(path, root)
            if not is_allowed(name, folder, own | extra, others | ONLY_IN.get(str(relative), set()))
        ]
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_no_upward_import(folder: str) -> None:
    assert upward_imports(folder) == []


def test_nothing_that_is_installed_to_watch_jobs_knows_what_judges_it() -> None:
    """Nothing that judges can tell a simulated record from a real one, and the product works without either."""
    for folder in set(ALLOWED) - {"evaluation", "simulator"}:
        for path in (ROOT / folder).rglob("*.py"):
            names = [name for _, name in imports_of(path, ROOT)]
            assert not any(name.startswith(("whichrank.simulator", "whichrank.evaluation")) for name in names), path


def test_an_upward_import_is_found(tmp_path: Path) -> None:
    (tmp_path / "instrumentation" / "deep").mkdir(parents=True)
    (tmp_path / "instrumentation" / "a.py").write_text(
        "import numpy, os\nfrom ..telemetry import tables, ring_layout\nfrom . import b\n"
    )
    (tmp_path / "instrumentation" / "deep" / "b.py").write_text("def f():\n    from ...agents import job_agent\n")
    assert upward_imports("instrumentation", tmp_path) == [
        "instrumentation/a.py:1 imports numpy",
        "instrumentation/a.py:2 imports whichrank.telemetry.tables",
        "instrumentation/deep/b.py:2 imports whichrank.agents.job_agent",
    ]
