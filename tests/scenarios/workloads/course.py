"""Leads one rank of a scenario through its plan: pace, jitter, evaluation, checkpoints, and the moment of the fault.

Runs inside the training process, beside an ordinary training script. Everything it does was drawn beforehand
(``draw.py``) and comes from the plan file that SCENARIO_PLAN names; it draws nothing itself beyond the jitter that
the plan's seed fixes. What really happened and when goes to the plan's truth folder, which whichrank never reads.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH = 8
FEATURES = 32
#: What a paced part takes of the step; the rest (backward, optimizer, collectives) is whatever it really costs.
SHARES = {"data": 0.15, "forward": 0.85}
#: Real work instead of pace: nearly all of the step, so that 30 % more of it makes the step about 30 % longer.
SHARES_UNPACED = {"data": 0.02, "forward": 0.98}


#: How a script leaves its loop: destroys its groups; waits for the others first; leaves everything to the exit.
END_DESTROYS, END_BARRIER, END_RETURNS = 0, 1, 2
#: Points that a script does not pass in every step.
NOW_AND_THEN = ("evaluate", "save")


def true_time() -> float:
    """Unix seconds, also where the scenario has set this node's clock ahead."""
    return time.clock_gettime(time.CLOCK_REALTIME) - float(os.environ.get("CLOCK_AHEAD_S", "0"))


class Course:
    """The plan of this rank. One per process."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.plan: dict[str, Any] = json.loads(Path(os.environ["SCENARIO_PLAN"]).read_text())
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.steps: int = self.plan["steps"]
        self.step = -1
        self.options: dict[str, float] = self.plan["options"]
        self._guilty = self.rank in self.plan["guilty"]
        self._truth = Path(self.plan["truth"])
        self._truth.mkdir(parents=True, exist_ok=True)
        # An attempt after a restart finds its fault behind it.
        bites = self._truth / f"bites-{self.rank}.txt"
        self._bitten = bites.exists() and len(bites.read_text()) >= int(self.options.get("bites", 1))
        self._ended = False
        self._profiler: Any = None
        self._helpers: Any = None
        self.again: Callable[[torch.Tensor | None], None] | None = None  # what a lasting fault does in later steps
        self._burns = 0
        self._lengths_s: list[float] = []
        self._usual_step_s = 0.0
        self._step_began = 0.0
        self._shares = SHARES_UNPACED if self.options.get("unpaced") else SHARES
        self._microsteps = int(self.options.get("microsteps", 1))
        if self.plan["fault"] == "runs_out" and self._guilty:
            self.steps = self.plan["onset_step"]
        self._write(f"rank-{self.rank}.json", {"pid": os.getpid(), "node": os.uname().nodename})
        self._step_log = os.open(
            self._truth / f"steps-{self.rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        )
        torch.manual_seed(self.plan["jitter_seed"] + self.rank)

    # -- steps -------------------------------------------------------------------------------------------------------
    def begin(self, step: int) -> None:
        self.step = step
        self._profile()
        self._step_began = time.monotonic()
        if self.plan["point"] == "data" and self.options.get("loader_workers") and self._due("data"):
            # The helper process gets stuck; this rank meets it now, when it asks for the batch.
            self.stamp(__file__, 0, 10**9)

    def end(self) -> None:
        self._lengths_s.append(time.monotonic() - self._step_began)
        line = f"{self.step} {true_time():.6f}\n"
        os.write(self._step_log, line.encode())

    def _profile(self) -> None:
        """A window of two steps under torch's profiler every so often: on rank 0, or on all ranks (``profile_all``)."""
        every = int(self.options.get("profile_every", 0))
        if not every or (self.rank != 0 and not self.options.get("profile_all")):
            return
        if self._profiler is not None and self.step % every == 2:
            self._profiler.__exit__(None, None, None)
            self._profiler.export_chrome_trace(str(self._truth / f"trace-{self.rank}.json"))
            self._profiler = None
        elif self.step > 0 and self.step % every == 0:
            self._profiler = torch.profiler.profile(record_shapes=True, with_stack=True)
            self._profiler.__enter__()

    def loader(self, first_step: int = 0) -> DataLoader[Any]:
        """An endless-enough loader: one batch per microstep, paced as the plan says. first_step: of a resumed run."""
        workers = int(self.options.get("loader_workers", 0))
        return DataLoader(
            Samples(self, (self.steps + 1 - first_step) * BATCH * self._microsteps, first_step),
            batch_size=BATCH,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )

    # -- pace --------------------------------------------------------------------------------------------------------
    @contextmanager
    def part(self, name: str, step: int | None = None) -> Iterator[None]:
        """Does the body's real work, then fills the part up to its drawn length; here the fault bites."""
        step = self.step if step is None else step
        until = time.monotonic() + self._budget_s(name, step)
        self.point(name, step=step)
        yield
        if name == "forward" and self.options.get("unpaced"):
            self._burn(step)
            return
        rest = until - time.monotonic()
        if rest > 0.02:
            time.sleep(rest - 0.005)
        while time.monotonic() < until:
            sum(range(200))  # the last milliseconds are spun: real work does not sleep

    def _budget_s(self, name: str, step: int) -> float:
        common = random.Random(f"{self.plan['jitter_seed']}/{step}")
        own = random.Random(f"{self.plan['jitter_seed']}/{step}/{self.rank}/{name}")
        step_s: float = self.plan["step_s"] / self._microsteps / self.options.get("stages", 1.0)
        if spread := self.options.get("vary_together"):
            step_s *= common.uniform(1.0, spread)
        step_s *= self._growth(step)
        seconds = step_s * self._shares[name] * max(0.5, own.gauss(1.0, self.plan["jitter"]))
        if step == 0 and name == "forward" and (first := self.options.get("first_step_s")):
            seconds = first * own.uniform(0.9, 1.1)
        if name == "data" and own.random() < self.options.get("hiccups", 0.0):
            seconds += own.uniform(0.1, self.options.get("hiccup_s", 0.8))
        if self.options.get("wander") and name == "forward":
            seconds += self._wandering_pause_s(step)
        # Thirty percent of the step as it really is: on a crowded machine that is more than what was drawn.
        seconds += self._slow_down(name, step) * max(step_s, self._usual_step_s)
        if name == "forward":  # no two nodes are equally fast: the last rank needs less by this share
            seconds *= 1.0 - self.options.get("uneven", 0.0) * self.rank / max(1, self.world_size - 1)
        return seconds

    def _growth(self, step: int) -> float:
        """Steps that grow over the run to ``grow_to`` times their first length: longer sequences, or larger batches
        in as many stairs as ``stairs`` says."""
        grown = step / max(1, self.steps - 1)
        if stairs := self.options.get("stairs"):
            grown = int(grown * (stairs + 1)) / stairs if grown < 1.0 else 1.0
        return 1.0 + (self.options.get("grow_to", 1.0) - 1.0) * grown

    def _wandering_pause_s(self, step: int) -> float:
        """In each step another rank collects garbage."""
        drawn = random.Random(f"{self.plan['jitter_seed']}/{step}/wander")
        return drawn.uniform(0.1, 0.5) if drawn.randrange(self.world_size) == self.rank else 0.0

    def _slow_down(self, name: str, step: int) -> float:
        """The straggler's surplus in steps; stamps its onset the first time."""
        last = self.plan["onset_step"] + int(self.options.get("slow_steps", 10**9)) - 1
        if self._bitten and self.plan["fault"] == "slow" and name == self.plan["point"] and step > last:
            self.stamp_end()
        if self.plan["fault"] != "slow" or not self._guilty or not self.plan["onset_step"] <= step <= last:
            return 0.0
        if name != self.plan["point"]:
            return 0.0
        if not self._bitten:
            self._bitten = True
            self._usual_step_s = statistics.median(self._lengths_s[2:] or [0.0])
            self.stamp(__file__, 0, 10**9)
        return float(self.options["slow_by"])

    def calibrate(self) -> None:
        """Unpaced runs: how many multiplications fill a forward pass on the slowest rank. Collective."""
        if not self.options.get("unpaced"):
            return
        self._matrix = torch.randn(192, 192) / 14.0
        began, count = time.monotonic(), 0
        while time.monotonic() < began + 1.0:
            self._matrix @ self._matrix
            count += 1
        burns = torch.tensor([count * self.plan["step_s"] * self._shares["forward"]])
        dist.all_reduce(burns, op=dist.ReduceOp.MIN)
        self._burns = max(1, int(burns.item()))

    def _burn(self, step: int) -> None:
        own = random.Random(f"{self.plan['jitter_seed']}/{step}/{self.rank}/burn")
        share = (
            max(0.5, own.gauss(1.0, self.plan["jitter"])) + self._slow_down("forward", step) / self._shares["forward"]
        )
        for _ in range(int(self._burns * share)):
            self._matrix @ self._matrix

    # -- faults ------------------------------------------------------------------------------------------------------
    def _due(self, name: str, step: int | None = None) -> bool:
        plan = self.plan
        step = self.step if step is None else step
        if name in NOW_AND_THEN:  # the first time from the drawn step on
            step = max(plan["onset_step"], 0) if step >= plan["onset_step"] else -1
        return bool(self._guilty and not self._bitten and name == plan["point"] and step == plan["onset_step"])

    def point(self, name: str, tensor: torch.Tensor | None = None, step: int | None = None) -> bool:
        """A place where the plan's fault may bite. True when the fault took the place of what follows."""
        if self.again is not None and name == self.plan["point"]:
            self.again(tensor)
        if not self._due(name, step) or self.plan["fault"] in ("", "runs_out", "slow"):
            return False
        self._bitten = True
        import crash_faults  # type: ignore[import-not-found]  # noqa: F401  # registers its own with ``faults``
        import faults  # type: ignore[import-not-found]  # beside this file; only the guilty rank ever loads it

        return bool(faults.FAULTS[self.plan["fault"]](self, tensor))

    def pid_of(self, rank: int) -> int:
        """Of another rank, which wrote it down when it started."""
        return int(json.loads((self._truth / f"rank-{rank}.json").read_text())["pid"])

    def stamp(self, file: str, first_line: int, last_line: int, *, rank: int | None = None) -> None:
        """The true onset, to be called right before the fault bites. rank: on which, if not on this one.

        One that bites again after a restart began with its first bite.
        """
        with (self._truth / f"bites-{self.rank}.txt").open("a") as bites:
            bites.write("x")
        name = f"onset-{self.rank if rank is None else rank}.json"
        if (self._truth / name).exists():
            return
        self._write(
            name,
            {
                "realtime": true_time(),
                "monotonic": time.monotonic(),
                "step": self.step,
                "file": Path(file).name,
                "lines": [first_line, last_line],
            },
        )

    def stamp_end(self) -> None:
        """The fault is over and the job goes on, to be called right after; the first call counts."""
        if not self._ended:
            self._ended = True
            self._write(f"ended-{self.rank}.json", {"realtime": true_time()})

    def stamp_wait(self) -> None:
        """From here on this rank waits for the guilty one, to be called right before (never joined)."""
        self._write(f"waits-{self.rank}.json", {"realtime": true_time()})

    # -- around the loop ---------------------------------------------------------------------------------------------
    def timeout(self) -> timedelta | None:
        """The process groups' time-out, torch's own if the plan names none."""
        seconds = self.options.get("timeout_s")
        return timedelta(seconds=seconds) if seconds else None

    def hook(self, model: DistributedDataParallel) -> None:
        """What scripts hang onto backward: a hook of a module, or DDP's own for each bucket of gradients."""
        if self.plan["point"] == "module_hook":
            trained = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
            trained[-1].register_full_backward_hook(lambda *_: self.point("module_hook") or None)
        elif self.plan["point"] == "comm_hook":

            def reduce(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
                self.point("comm_hook")
                return allreduce_hook(state, bucket)

            reduce.__annotations__.clear()  # DDP refuses words where it expects classes (annotations are text here)
            model.register_comm_hook(None, reduce)

    def finish(self) -> None:
        """After the last step, which comes early on a rank with fewer batches."""
        how = self.options.get("ends_by", END_DESTROYS)
        if self.plan["fault"] == "runs_out" and self._guilty:
            self.stamp(__file__, 0, 0)
        if how == END_BARRIER:
            dist.barrier()
        if how != END_RETURNS:
            dist.destroy_process_group()

    # -- what real scripts do between steps --------------------------------------------------------------------------
    def between_steps(self, model: torch.nn.Module) -> None:
        """Rank 0 evaluates or saves alone while the others wait at a barrier, when the plan says so."""
        own = random.Random(f"{self.plan['jitter_seed']}/{self.step}/between")
        if self._every("evaluate_every"):
            if self.rank == 0:
                self._evaluate(model, self._seconds("evaluate") * own.uniform(0.93, 1.07))
            dist.barrier()
        if self._every("checkpoint_every"):
            if self.rank == 0:
                seconds = self._seconds("checkpoint") * own.uniform(0.93, 1.07)
                target = SlowFile(self, self._truth / "checkpoint.pt", seconds)
                torch.save(model.state_dict(), target)  # type: ignore[arg-type]
                target.close()
            dist.barrier()

        if self.options.get("helpers_every_s"):
            self._start_helpers()
        if self._every("save_every"):  # each rank its shard
            seconds = self.options["save_s"] * own.uniform(0.93, 1.07)
            seconds += self._slow_down("checkpoint", self.step) and self.options["save_slow_s"] * own.uniform(
                0.93, 1.07
            )
            target = SlowFile(self, self._truth / f"shard-{self.rank}.pt", seconds)
            torch.save(model.state_dict(), target)  # type: ignore[arg-type]
            target.close()
            dist.barrier()

    def _start_helpers(self) -> None:
        """About as often as the option says, on every rank."""
        from helper_processes import Helpers  # type: ignore[import-not-found]

        if self._helpers is None:
            self._helpers = Helpers()
        self._helpers.reap()
        own = random.Random(f"{self.plan['jitter_seed']}/{self.step}/{self.rank}/helpers")
        if own.random() < float(self.plan["step_s"]) / self.options["helpers_every_s"]:
            self._helpers.start_next()

    def _seconds(self, habit: str) -> float:
        """As drawn in seconds, or in steps."""
        return self.options.get(f"{habit}_s", self.options.get(f"{habit}_steps", 0.0) * float(self.plan["step_s"]))

    def shift_is_over(self, first_step: int) -> bool:
        """Whether a job that is started again and again has done what it does in one go (option ``shift``, steps)."""
        return 0 < self.options.get("shift", 0) <= self.step + 1 - first_step

    def _every(self, option: str) -> bool:
        every = int(self.options.get(option, 0))
        if self.options.get("first_at_onset"):  # no evaluation or save before the one that the fault is in
            return every > 0 and self.step == self.plan["onset_step"]
        return every > 0 and (self.step + 1) % every == 0

    def _evaluate(self, model: torch.nn.Module, seconds: float) -> None:
        alone = getattr(model, "module", model)  # a DDP forward could communicate, and only rank 0 is here
        alone.eval()
        began = time.monotonic()
        with torch.no_grad():
            while time.monotonic() < began + seconds:
                alone(torch.randn(BATCH, FEATURES))
                self.point("evaluate")
        alone.train()

    def _write(self, name: str, document: dict[str, Any]) -> None:
        part = self._truth / f".{name}.{os.getpid()}"
        part.write_text(json.dumps(document))
        part.rename(self._truth / name)


class Samples(Dataset[Any]):
    """Random samples, fetched a batch at a time, at the pace of the plan; also in a loader worker."""

    def __init__(self, course: Course, length: int, first_step: int = 0) -> None:
        self._course = course
        self._length = length
        self._first_step = first_step

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        step = self._first_step + indices[0] // (BATCH * int(self._course.options.get("microsteps", 1)))
        with self._course.part("data", step):
            x = torch.randn(len(indices), FEATURES)
            return [(row, row.sum().unsqueeze(0)) for row in x]


class SlowFile:
    """A file whose writes take about ``seconds`` in all, as a busy file server makes them."""

    def __init__(self, course: Course, path: Path, seconds: float) -> None:
        self._course = course
        self._file = path.open("wb")
        self._until = time.monotonic() + seconds
        self._wrote = 0

    def write(self, data: bytes) -> int:
        if self._wrote == 0:
            self._course.point("save")
            time.sleep(max(0.0, self._until - time.monotonic()))
        self._wrote += 1
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
