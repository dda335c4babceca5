"""The attempt token is asked for only while the store is there: torch answers for one that is gone with a backtrace."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import torch.distributed as torch_distributed

from tests.instrumentation.jobs import run_python
from whichrank.instrumentation.attempt_token import exchange_token, is_connected
from whichrank.telemetry import ring_layout as layout

#: torch's stubs leave out what is used here.
dist: Any = torch_distributed
#: Jobs of two ranks, forked by a process that has torch imported. Rank 0 keeps the store and leaves first: in the first
#: job before it has said its token (a second after the start), in the other after both have it. A rank that asks in the
#: very milliseconds in which the store goes cannot be kept silent; no moment here is near one.
RANK_0_LEAVES_FIRST = """
import os, socket, sys, time
import torch, torch.distributed as dist

seconds = [0.0, 2.5]
listeners = [socket.create_server(("127.0.0.1", 0)) for _ in seconds]
ports = [listener.getsockname()[1] for listener in listeners]
for listener in listeners:
    listener.close()
pids = []
for port, until_end in zip(ports, seconds):
    for rank in range(2):
        pids.append(os.fork())
        if pids[-1] == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_PORT=str(port))
            import whichrank
            assert whichrank.init()
            dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
            time.sleep(3.0 if rank else until_end)
            if not rank and not until_end:
                os._exit(0)  # an interpreter's end takes as long as the other rank waits before it asks
            sys.exit(0)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
"""


def test_a_rank_that_outlives_the_store_says_nothing_into_the_jobs_log(tmp_path: Path) -> None:
    done = run_python(textwrap.dedent(RANK_0_LEAVES_FIRST), tmp_path)
    assert done.output.splitlines() == [str([0] * 4)]
    tokens: dict[str, list[str]] = {}
    for ring in done.rings:
        told = [payload["token"] for kind, payload in ring.definitions if kind == layout.DEFINITION_ATTEMPT]
        tokens.setdefault(ring.identity["MASTER_PORT"], []).extend(told)
    agreed = [told for told in tokens.values() if len(told) == 2]  # of the job whose store lived long enough
    assert agreed
    assert all(len(set(told)) == 1 for told in agreed)
    assert all(ring.hook_errors == 0 for ring in done.rings)


def test_a_store_is_connected_until_its_keeper_goes() -> None:
    keeper = dist.TCPStore("127.0.0.1", 0, None, True)
    client = dist.TCPStore("127.0.0.1", keeper.port, None, False)
    assert is_connected(keeper)
    assert is_connected(dist.PrefixStore("outer", dist.PrefixStore("inner", client)))
    del keeper
    assert not is_connected(client)
    assert is_connected(dist.HashStore())


def test_whoever_comes_first_puts_the_token_and_who_comes_late_finds_it() -> None:
    keeper = dist.TCPStore("127.0.0.1", 0, None, True)
    told: list[str] = []
    for _ in range(3):
        client = dist.TCPStore("127.0.0.1", keeper.port, None, False)
        exchange_token(dist.PrefixStore("default_pg", client), told.append).join()
    assert len(told) == 3
    assert len(set(told)) == 1
    assert len(told[0]) == 16


def test_a_store_that_cannot_agree_costs_the_token_and_nothing_else() -> None:
    told: list[str] = []

    class Refusing:
        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            raise NotImplementedError

    exchange_token(Refusing(), told.append).join()
    assert told == []
