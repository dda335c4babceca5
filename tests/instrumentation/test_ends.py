"""How a recording ends with its process: nothing of ours is inside torch, or torch's, once the interpreter has gone."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from tests.instrumentation.jobs import run_python

#: Ranks of one-rank jobs, forked by a process that has torch imported, one of each writer at a time: each leaves right
#: after its last asynchronous call, so that Work whose end nobody has looked for is still held. Every other one
#: destroys its groups.
LEAVE_AT_ONCE = """
import atexit, os, sys, threading
import torch, torch.distributed as dist

def say_who_is_left():
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("whichrank")]
    os.write(1, f"left: {left}\\n".encode())

def train(number):
    atexit.register(say_who_is_left)  # before ours, so it is called after it
    import whichrank.instrumentation.api
    assert whichrank.init()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    other = dist.new_group([0])
    work = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(200)]
    dist.all_reduce(torch.ones(3), group=other)
    work[-1].get_future().wait()
    del work
    if number == 2:
        whichrank.instrumentation.api.stop()
    if number == 4:
        child = os.fork()
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == number
    if number % 2:
        dist.destroy_process_group()
    sys.exit(number)

statuses = []
for number in range(5):
    pids = []
    for native in "10":
        pids.append(os.fork())
        if pids[-1] == 0:
            os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", WHICHRANK_NATIVE=native)
            train(number)
    statuses.append([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
print(statuses)
"""


def test_a_process_that_leaves_right_after_its_last_call_ends_as_it_wanted(tmp_path: Path) -> None:
    done = run_python(textwrap.dedent(LEAVE_AT_ONCE), tmp_path)
    *left, statuses = done.output.splitlines()
    assert json.loads(statuses) == [[number] * 2 for number in range(5)], done.output
    assert left == ["left: []"] * 12
