"""Only ``user_files`` opens what a user of the node can name; all other openings are listed, with why."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

AGENTS = Path(__file__).parents[2] / "agents"
#: Functions of os, shutil and glob, of pathlib's paths, and the built-in one.
OF_MODULES = {
    "os": {"open", "stat", "lstat", "listdir", "scandir", "unlink", "remove", "rename", "replace", "readlink", "access",
           "rmdir", "mkdir", "makedirs", "statvfs", "walk", "symlink", "link", "chmod", "chown", "truncate"},
    "shutil": {"rmtree", "copy", "copyfile", "move", "copytree"},
    "glob": {"glob", "iglob"},
}  # fmt: skip
OF_PATHS = {"read_text", "read_bytes", "iterdir", "unlink", "rename", "rmdir", "touch", "write_text", "write_bytes",
            "is_file", "is_dir", "exists", "glob", "rglob", "resolve", "readlink", "lstat", "mkdir"}  # fmt: skip
KERNEL, OWN, HELD, OPERATOR = (
    "files of the kernel's own, by numbers",
    "the agent's own folders, which are root's",
    "a folder that is held open, by its descriptor",
    "files that the operator names",
)
ALLOWED = {
    "processes/processes.py": KERNEL,
    "processes/job_id_proof.py": "files of the kernel's own, and kubelet's folder, which is root's",
    "ranks/motion.py": KERNEL,
    "collectors/base/small_files.py": KERNEL,
    "collectors/base/kernel_files.py": KERNEL,
    "collectors/gpu/driver.py": KERNEL,
    "collectors/gpu/ranks.py": KERNEL,
    "collectors/gpu/amd_library.py": "a folder that is root's: one that others can write is left alone",
    "collectors/host/cpu_speed.py": KERNEL,
    "collectors/host/host_collector.py": KERNEL,
    "collectors/network/sysfs_ports.py": KERNEL,
    "collectors/processes/process_files.py": KERNEL,
    "collectors/processes/process_collector.py": KERNEL,
    "collectors/processes/blocked_ranks.py": "a table of ours",
    "node_agent.py": OWN,
    "evidence/evidence_store.py": OWN,
    "publish/spool.py": OWN,
    "rings/ring_directory.py": HELD,
    "evidence/rank_environment.py": KERNEL,
    "evidence/ras_client.py": KERNEL,
    "evidence/flight_dumps.py": "a descriptor that a helper has handed over",
    "evidence/stacks.py": "py-spy, beside this interpreter",
    "evidence/kernel_log_slice.py": OPERATOR,
    "collectors/logs/kernel_log_sources.py": OPERATOR,
    "collectors/storage/mount_probes.py": OPERATOR,
    "collectors/surroundings/versions_collector.py": OPERATOR,
    "collectors/surroundings/topology_collector.py": OPERATOR,
}


def openings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            yield f"line {node.lineno}: open"
        elif isinstance(called, ast.Attribute):
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
            if called.attr in OF_MODULES.get(owner, ()) or (owner not in OF_MODULES and called.attr in OF_PATHS):
                yield f"line {node.lineno}: {owner}.{called.attr}"


def test_nothing_else_opens_files() -> None:
    found = {}
    for path in sorted(AGENTS.rglob("*.py")):
        name = path.relative_to(AGENTS).as_posix()
        lines = list(openings(path))
        if lines and not name.startswith("user_files/"):
            found[name] = lines
    assert {name: lines for name, lines in found.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) - set(found) == set(), "allowed, and opens nothing any more"


def test_no_name_of_another_process_is_followed() -> None:
    """/proc/PID/root, cwd, fd and map_files lead where a user says."""
    for path in sorted(AGENTS.rglob("*.py")):
        if path.relative_to(AGENTS).parts[0] == "user_files":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            text = "".join(
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "PID"
                for part in getattr(node, "values", [])
            )
            for name in ("root", "cwd", "map_files", "fd/"):
                assert f"PID/{name}" not in text or "os.stat" in text, f"{path}: {text}"
