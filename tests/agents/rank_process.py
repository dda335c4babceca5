"""A rank for tests: a real process with a real ring that does what its standard input says, one line at a time.

Not a test module. Answers every line with ``ok VALUE`` once it is done, so tests need no sleeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from whichrank.instrumentation.fatal_signals import watch_fatal_signals
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry.checkpoint_states import SaveState, SaveWay, Tier, pack_save_extra, pack_save_head
from whichrank.telemetry.ring_layout import DEFINITION_ATTEMPT, DEFINITION_SAVE_FAILED
from whichrank.telemetry.vocabulary import EventKind, HookState, Level


def answer_when_it_stands(main_thread: int) -> None:
    while sys._current_frames()[main_thread].f_code is not stand_still.__code__:  # noqa: SLF001  (documented)
        time.sleep(0.001)
    print("ok", flush=True)


def stand_still() -> None:
    while True:  # the line that stacks must name
        time.sleep(0.05)  # MARK: stands still here


def main() -> None:
    if log := json.loads(sys.argv[4]).get("log"):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    directory, rank, world, options = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    writer = RingWriter.create(
        directory,
        rank=rank,
        local_rank=rank,
        world_size=world,
        identity={
            "launcher_pid": os.getppid(),
            "launcher_start_ticks": 7,
            "restart_count": options.get("restart_count", 0),
            "host": "here",
            "torch": "2.15.0",
            **options.get("identity", {}),
        },
        slots=options.get("slots"),
    )
    group = writer.define_group(
        {
            "name": "default_pg",
            "ranks": f"0-{world - 1}",
            "size": world,
            "backend": "gloo",
            "ordinal": 0,
            "timeout_s": 1800,
            "default": True,
        }
    )
    writer.track_completion(True)
    writer.set_level(Level.EVENTS, HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED)
    beating = threading.Event()
    beating.set()

    def beat() -> None:
        while True:
            if beating.is_set():
                writer.beat()
            time.sleep(0.02)

    writer.beat()
    threading.Thread(target=beat, daemon=True).start()
    print("ok started", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        answer: object = ""
        if word == "collectives":
            for _ in range(int(rest[0])):
                writer.complete(group, writer.enqueue(group, 1, 4096, 6, -1, 0), 0, 0)
        elif word == "token":
            writer.define(DEFINITION_ATTEMPT, 0, {"token": rest[0]})
        elif word == "checkpoint":
            writer.append_event(EventKind.CHECKPOINT, value=int(rest[0], 16), extra=int(rest[1]))
        elif word == "save":  # state, number, value, steps held, bytes, of which way
            state, number, value, step, size = (int(each) for each in rest)
            head = pack_save_head(SaveState(state), Tier.NETWORK, SaveWay.DCP_ASYNC_SAVE)
            value = value or time.monotonic_ns() - 2_000_000_000
            extra = pack_save_extra(step, size)
            writer.append_event(EventKind.SAVE, group=head, seq=number, value=value, extra=extra)
        elif word == "save-error":
            writer.define(DEFINITION_SAVE_FAILED, int(rest[0]), {"error": " ".join(rest[1:])})
        elif word == "enter":
            answer = writer.enqueue(group, 1, 4096, 6, -1, 0)
        elif word == "leave":
            writer.complete(group, int(rest[0]), 0, 0)
        elif word == "phase":
            answer = writer.set_phase(int(rest[0]))
        elif word == "step":
            answer = writer.end_step(float(rest[0]), None, 0)
        elif word in ("raise", "thread-raise"):
            writer.record_exception(
                "builtins." + " ".join(rest).replace("|", ":"),
                [("/home/me/train.py", 88, "train"), ("/x/site-packages/torch/nn/modules/module.py", 7, "forward")],
                word == "raise",
            )
        elif word == "fatal":
            answer = len(watch_fatal_signals(writer.path, writer.geometry.crash_offset))
        elif word == "keep-stack":
            writer.record_stack([("/home/me/train.py", 41, "forward")])
        elif word == "log":
            print(" ".join(rest), file=sys.stderr, flush=True)
        elif word == "silence":
            beating.clear()
        elif word == "stand":
            threading.Thread(target=answer_when_it_stands, args=(threading.get_ident(),), daemon=True).start()
            stand_still()
        elif word == "stop":
            print("ok", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            continue
        elif word == "exit":
            writer.record_exit(int(rest[1]))
            os._exit(int(rest[0]))
        with contextlib.suppress(BrokenPipeError):
            print("ok", answer, flush=True)


if __name__ == "__main__":
    main()
