"""Parts of the reader by themselves: what is asserted, whom a text names, how time-outs differ, what was wrapped."""

from __future__ import annotations

import numpy as np
import pytest

from whichrank.diagnosis.job_log.assertion import asserted
from whichrank.diagnosis.job_log.gpu_memory import is_held_by_others
from whichrank.diagnosis.job_log.model import LogLine
from whichrank.diagnosis.job_log.standstills import Standstills
from whichrank.diagnosis.job_log.targets import NOBODY, Target, target_of
from whichrank.diagnosis.job_log.wrapped import Unwrapper, wrap_width


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("exit code 137. This usually means that memory ran out", "exit code 137. This"),
        ("A worker died. There are some potential root causes. (1) OOM killer (2) SIGSEGV", "A worker died."),
        ("Failed to check (maybe it has gone), with error: Broken pipe", "Failed to check , with error: Broken pipe"),
        ("the file could not be opened", "the file could not be opened"),
        ("Please try a smaller batch", ""),
        ("May  3 04:05:06 the link went down", "May  3 04:05:06 the link went down"),
    ],
)
def test_a_guess_is_cut_off(text: str, fact: str) -> None:
    assert asserted(text).strip() == fact


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("Connect to 192.0.2.7<56821> failed : Connection refused", Target(peer="192.0.2.7")),
        ("recv failed, addr=[gpu-2]:5, remote=[gpu-1]:29500", Target(peer="gpu-1")),
        ("Ranks 2, 6 failed to pass monitoredBarrier", Target(missing=(2, 6))),
        ("Node failure on gpu-n37", Target(node="gpu-n37")),
        ("*** STEP 1.0 ON gpu-n17 CANCELLED DUE TO NODE FAILURE ***", NOBODY),
        ("MPI_ABORT was invoked on rank 3", Target(rank=3)),
        ("step 10 loss 2.0", NOBODY),
    ],
)
def test_whom_a_text_names(text: str, target: Target) -> None:
    assert target_of(text) == target


def said(*works: tuple[int, int, str], group: str = "0 PG GUID 0(default_pg)") -> Standstills:
    standstills = Standstills()
    for rank, sequence, operation in works:
        text = f"WorkNCCL(SeqNum={sequence}, OpType={operation}, NumelIn=1)"
        standstills.see(LogLine(source=0, number=rank + 1, text=text, rank=rank, group=group))
    return standstills


def test_time_outs_are_compared() -> None:
    elsewhere = said((0, 7, "BROADCAST"), (1, 5, "ALLREDUCE"), (2, 5, "ALLREDUCE")).difference()
    assert elsewhere is not None
    assert (elsewhere.ranks, elsewhere.differs) == ((0,), "elsewhere")
    behind = said((0, 5, "ALLREDUCE"), (1, 4, "ALLREDUCE"), (2, 5, "ALLREDUCE")).difference()
    assert behind is not None
    assert (behind.ranks, behind.differs) == ((1,), "behind")
    silent = said((0, 5, "ALLREDUCE"), (1, 5, "ALLREDUCE"), (3, 5, "ALLREDUCE")).difference()
    assert silent is not None
    assert (silent.ranks, silent.differs) == ((2,), "silent")


def test_who_says_nothing_is_not_told_of_a_part_of_the_job() -> None:
    assert said(*((rank, 5, "ALLREDUCE") for rank in range(8, 16))).difference() is None
    assert (
        said((1, 5, "ALLREDUCE"), (2, 5, "ALLREDUCE"), (3, 5, "ALLREDUCE"), group="2 PG GUID 5(tp)").difference()
        is None
    )


def test_memory_that_is_not_ours() -> None:
    form = "GPU 0 has a total capacity of 79.00 GiB of which 1.00 GiB is free. {}this process has {} GiB memory in use."
    assert is_held_by_others(form.format("", "8.00"), (), has_trained=True)
    assert not is_held_by_others(form.format("", "77.00"), (), has_trained=True)
    assert is_held_by_others(form.format("Process 7 has 40.00 GiB memory in use. ", "37.00"), (), has_trained=True)


def test_lines_are_unwrapped_only_at_the_width_of_the_log() -> None:
    lines = [b"x" * 80, b"tail of it", b"y" * 80, b"[rank3]: another line"]
    ends = np.cumsum([len(line) + 1 for line in lines]) - 1
    unwrapper = Unwrapper()
    unwrapper.width = wrap_width(ends)
    whole = [each for number, line in enumerate(lines, 1) for each in unwrapper.feed(number, line)]
    assert [number for number, _ in whole] == [1, 3, 4]
    assert whole[0][1] == lines[0] + lines[1]
    assert wrap_width(ends[:2]) == 0
