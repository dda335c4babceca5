"""What a newcomer meets: ``python -m tests.newcomer``. Downloads torch, takes some minutes.

Clones the repository into an empty folder, with an empty home, empty caches and hardly a variable, and runs what the
README shows first (``make demo``), then its own job: script and command of "Your own script", as they stand there.
Timed; whether a rank was named is read from what the commands said and left.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.docs_commands.blocks import Block, blocks
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.simulator.scoring.summary import ScoreLine

ROOT = Path(__file__).parents[1]
COMMANDS, SCRIPT = "Two commands", "Your own script"
ASKED_S = 300.0
#: Nobody waits longer; more than that is wrong.
LIMIT_S = 1800.0
#: What must be there before (README, "Two commands").
NEEDED = ("git", "make", "cc", "bash")
#: How a machine reaches its packages is its owner's affair: addresses and certificates are passed on, caches are not.
PASSED_ON = re.compile(
    r"(?:https?|no|all)_proxy|(?:PIP|UV)_\w*INDEX\w*|PIP_CERT|SSL_CERT_\w+|GIT_SSL_\w+", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A block that was run. named: the rank that whichrank said, -1 none."""

    text: str
    status: int
    seconds: float
    output: str
    named: int


def demo_and_own_job(readme: str) -> tuple[str, str]:
    """The first of the two commands, and the command for one's own script: shell blocks, as they stand there."""
    demo, _ = _shell_blocks(readme, COMMANDS)
    (own,) = _shell_blocks(readme, SCRIPT)
    return demo, own


def _shell_blocks(readme: str, section: str) -> Sequence[str]:
    return [block.text for block in _of_section(readme, section) if block.language in ("sh", "bash")]


def script(readme: str) -> str:
    """``train.py``, whole."""
    return next(block.text for block in _of_section(readme, SCRIPT) if block.language == "python")


def guilty(train: str) -> tuple[int, int]:
    """The rank that the script lets fail, and the line where."""
    rank = re.search(r"get_rank\(\) == (\d+)", train)
    line = next(number for number, text in enumerate(train.splitlines(), 1) if "raise " in text)
    if rank is None:
        raise ValueError("the README's train.py names no rank that fails")
    return int(rank[1]), line


def _of_section(readme: str, section: str) -> Sequence[Block]:
    return [block for block in blocks(readme) if block.section == section]


def environment(home: Path) -> Mapping[str, str]:
    """Hardly a variable. The interpreter's own folder, not a wrapper of it that needs somebody's home."""
    places = [Path(sys.base_prefix) / "bin", *(Path(found).parent for name in NEEDED if (found := shutil.which(name)))]
    passed = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    path = os.pathsep.join(dict.fromkeys(map(str, places)))
    return {**passed, "HOME": str(home), "TMPDIR": str(home / "tmp"), "PATH": path, "LANG": "C.UTF-8"}


def run_block(text: str, folder: Path, environ: Mapping[str, str], limit_s: float) -> Done:
    """By a shell that stops at the first command that fails, as a person would."""
    began_s = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        shell = subprocess.Popen(["bash", "-e", "-c", text], cwd=folder, env=environ, stdout=said, stderr=said)
        try:
            status = shell.wait(limit_s)
        except subprocess.TimeoutExpired:
            shell.terminate()
            status = shell.wait(60)
        seconds = time.monotonic() - began_s
        said.seek(0)
        output = said.read()
    return Done(text=text, status=status, seconds=seconds, output=output, named=named_rank(output))


def named_rank(output: str) -> int:
    """Of the last incident that was shown."""
    found = re.findall(r"who\s+rank (\d+)\b", output)
    return int(found[-1]) if found else -1


def last_incident(folder: Path) -> Mapping[str, Any]:
    """The last line of the newest run's ``incidents.jsonl``; empty where there is none."""
    runs = sorted((folder / "whichrank-out").glob("*/incidents.jsonl"), key=lambda path: path.stat().st_mtime)
    lines = runs[-1].read_text(encoding="utf-8").splitlines() if runs else []
    document: Mapping[str, Any] = json.loads(lines[-1]) if lines else {}
    return document


def measure(folder: Path, source: Path) -> tuple[Sequence[ScoreLine], str]:
    """The lines, and what was said where something went wrong."""
    home, clone = folder / "home", folder / "whichrank"
    (home / "tmp").mkdir(parents=True)
    environ = environment(home)
    began_s = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", str(source), str(clone)], env=environ, check=True)
    readme = (clone / "README.md").read_text(encoding="utf-8")
    demo_block, own_block = demo_and_own_job(readme)
    train = script(readme)
    demo = run_block(demo_block, clone, environ, LIMIT_S)
    until_named_s = time.monotonic() - began_s
    (clone / "train.py").write_text(train, encoding="utf-8")
    own = run_block(own_block, clone, environ, LIMIT_S)
    rank, line = guilty(train)
    incident = last_incident(clone)
    suspects: Sequence[Mapping[str, Any]] = incident.get("suspects") or ()
    where: Mapping[str, Any] = (suspects[0].get("where") if suspects else None) or {}
    named = [suspect.get("rank") for suspect in suspects] == [rank]
    at_line = str(where.get("file", "")).endswith("train.py") and where.get("line") == line
    right = demo.status == 0 and demo.named >= 0
    lines = [
        ScoreLine(
            name="from git clone to a named rank (everything installed, caches empty)",
            asked=f"< {ASKED_S:.0f} s",
            measured=f"{until_named_s:.0f} s" if right else f"nobody named, exit status {demo.status}",
            share=f"{int(right)} of 1",
            ok=right and until_named_s < ASKED_S,
        ),
        ScoreLine(
            name="`make demo` names rank, fault and line of a fault drawn at random",
            asked="exit status 0",
            measured=f"exit status {demo.status}, rank {demo.named}",
            share=f"{int(right)} of 1",
            ok=right,
        ),
        ScoreLine(
            name="the README's own train.py: rank and line are named",
            asked=f"rank {rank}, train.py:{line}",
            measured=f"rank {', '.join(str(each.get('rank')) for each in suspects) or 'none'}, "
            f"{Path(str(where.get('file') or 'nowhere')).name}:{where.get('line')}, {own.seconds:.0f} s",
            share=f"{int(named and at_line)} of 1",
            ok=named and at_line,
        ),
    ]
    wrong = [done for done, good in ((demo, right), (own, named and at_line)) if not good]
    return lines, "\n".join(f"$ {done.text}{done.output[-4000:]}" for done in wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=ROOT, help="the repository that is cloned; default: this one")
    given = parser.parse_args()
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        parser.error(f"{', '.join(missing)}: a newcomer needs it (README, {COMMANDS})")
    with tempfile.TemporaryDirectory(prefix="whichrank-newcomer-") as folder:
        lines, said = measure(Path(folder), given.source)
    print(said, file=sys.stderr)
    print_lines(lines, "A newcomer: git clone, then the README's demo and its own job as they stand there")
    print(in_short(lines))
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
