"""CPU seconds of this tree beside those of an older one: operators, agent, hooks. Pairs in one run, and an A/A control.

    python -m benchmarks.same_speed [--before REVISION] [--pairs 15] [--kept DIR]

Both trees are run from outside, by commands and the three lines of a training script that both have: ``whichrank
replay`` over one capture (the operators), and ``whichrank run`` over one process that takes steps (what the process
itself uses is the hooks', the rest the agent's). Each round runs the older tree, this one and this one again in an
order that is drawn; the third against the second is what two equal trees differ by. Asked is the median of the ratios
of all pairs. Needs git's history, and a C compiler for the older tree's parts in C. Only for Linux.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Report

ROOT = Path(__file__).parents[1]
#: The code before its first module was moved and its first sentence became a field.
BEFORE = "20c3c87b"
MOST_RATIO = 1.05
PAIRS = 15
#: Of the capture: a straggler among 256 ranks, told and over.
SIMULATED = ("--scenario", "slow_gpu", "--ranks", "256", "--seed", "11", "--minutes", "3")
STEPS = 1500
TRAIN = f"""
import resource, sys, time
import torch
import torch.distributed as dist
import whichrank
whichrank.init()
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + sys.argv[2], rank=0, world_size=1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(8, 16)
began = resource.getrusage(resource.RUSAGE_SELF)
for step in range({STEPS}):
    with whichrank.phase("data"):
        batch = data + step
    loss = model(batch).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    whichrank.step(loss=1.0)
    if step % 8 == 0:
        time.sleep(0.01)
ended = resource.getrusage(resource.RUSAGE_SELF)
with open(sys.argv[1], "w") as file:
    loop = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    print(loop, ended.ru_utime + ended.ru_stime, file=file)
"""
ENTRY = "from whichrank.commands.entry import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """name: of its column. path: a folder in which ``whichrank`` is the tree."""

    name: str
    path: Path

    def environ(self) -> Mapping[str, str]:
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        own = {"PYTHONPATH": str(self.path), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        return {**os.environ, **rank, **own}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_speed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--before", default=BEFORE, help=f"a revision of git (default {BEFORE})")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"rounds, each of three runs (default {PAIRS})")
    asked = parser.parse_args()
    if asked.pairs < 1:
        parser.error("--pairs: at least 1")
    with tempfile.TemporaryDirectory(prefix="same-speed-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        try:
            older = checked_out(asked.before, place / "before")
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            print(f"same_speed: --before {asked.before}: {said[-1] if said else error}", file=sys.stderr)
            return 2
        try:
            return compare(place, older, asked.pairs)
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", place / "before" / "whichrank"], cwd=ROOT, check=False
            )


def compare(place: Path, older: Path, pairs: int) -> int:
    (place / "now").mkdir()
    (place / "now" / "whichrank").symlink_to(ROOT)
    trees = (
        Tree(name="before", path=older),
        Tree(name="now", path=place / "now"),
        Tree(name="again", path=place / "now"),
    )
    capture = place / "capture"
    _program(trees[0], ["simulate", *SIMULATED, "--out", str(capture)], place)
    spent: dict[str, dict[str, list[float]]] = {}
    draw = random.Random(5)
    for number in range(pairs):
        for tree in draw.sample(trees, len(trees)):
            for part, seconds in measured(tree, capture, place / f"{number}-{tree.name}").items():
                spent.setdefault(part, {}).setdefault(tree.name, []).append(seconds)
        print(f"round {number + 1} of {pairs}: " + ", ".join(
            f"{part} " + " ".join(f"{by[tree.name][-1]:.2f}" for tree in trees) for part, by in spent.items()
        ), flush=True)  # fmt: skip
    report = Report("CPU seconds beside the older tree's: median of the pairs' ratios")
    for part, by in spent.items():
        ratios, control = _ratios(by["now"], by["before"]), _ratios(by["again"], by["now"])
        report.shown(f"{part}: A/A, this tree beside itself", _said(control))
        report.shown(f"{part}: this tree beside the older one", _said(ratios))
        within = sum(ratio <= MOST_RATIO for ratio in ratios)
        report.at_most(f"{part}: median of the ratios", MOST_RATIO, statistics.median(ratios), k=within, n=len(ratios))
    return report.finish()


def measured(tree: Tree, capture: Path, folder: Path) -> dict[str, float]:
    """CPU seconds by what uses them."""
    folder.mkdir()
    shutil.copytree(capture, folder / "capture")
    operators = _program(tree, ["replay", str(folder / "capture"), "--out", str(folder / "replayed")], folder)
    (folder / "train.py").write_text(TRAIN)
    port = str(20_000 + random.randrange(10_000))
    words = ["run", "--out", str(folder / "run"), "--", sys.executable, "train.py", str(folder / "spent"), port]
    whole = _program(tree, words, folder)
    loop, process = map(float, (folder / "spent").read_text().split())
    shutil.rmtree(folder)
    return {"operators": operators, "agent": whole - process, "hooks": loop}


def _program(tree: Tree, words: list[str], folder: Path) -> float:
    """Runs the tree's program; CPU seconds of it and of all that it has waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, *words],
        cwd=folder,
        env=tree.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{tree.name}: whichrank {words[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    if words[0] == "run" and "no rank was seen" in done.stderr:
        raise RuntimeError(f"{tree.name}: nothing was recorded, so nothing is measured: {done.stderr[-500:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def checked_out(revision: str, folder: Path) -> Path:
    """A folder with the revision as ``whichrank``, its parts in C made. Raises CalledProcessError."""
    folder.mkdir()
    for words in (
        ["git", "worktree", "add", "--detach", "--force", str(folder / "whichrank"), revision],
        [sys.executable, "setup.py", "build_ext", "--inplace"],
    ):
        cwd = ROOT if words[0] == "git" else folder / "whichrank"
        subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=True)
    _built_here(folder / "whichrank")
    return folder


def _built_here(tree: Path) -> None:
    """setuptools lays what it makes below the package's name, which in this layout is the tree itself."""
    for made in (tree / "whichrank").rglob("*.so") if (tree / "whichrank").is_dir() else ():
        target = tree / made.relative_to(tree / "whichrank")
        if not target.exists():
            shutil.copy(made, target)


def _ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def _said(ratios: list[float]) -> str:
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return f"{statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f})"


if __name__ == "__main__":
    raise SystemExit(main())
