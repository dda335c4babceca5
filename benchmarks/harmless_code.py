"""Abuse of whichrank's own code: every call that writes to the ring raises, from the start or from a step on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.harmless_run import Run

SABOTAGE = '''
"""Hidden behind the bootstrap, which runs it: every method of the ring writers raises, and counts that it did."""
import atexit, os, sys
if os.environ.get("RANK") and "--multiprocessing-fork" not in sys.argv:
    from pathlib import Path
    from whichrank.instrumentation import ring_writer
    folder, after_step = Path(os.environ["ABUSE_DIRECTORY"]), int(os.environ["ABUSE_AFTER_STEP"])
    struck, steps = {}, [0]
    NAMES = ("define", "define_group", "enqueue", "skip", "complete", "complete_through", "append_event", "set_phase",
             "end_step", "add_microstep", "set_loss", "set_level", "add_cost", "beat", "record_exception",
             "record_stack", "record_exit")
    def sabotage(owner, name):
        original = getattr(owner, name)
        def method(self, *args, **kwargs):
            if name == "end_step":
                steps[0] += 1
            if steps[0] < after_step:
                return original(self, *args, **kwargs)
            struck[name] = struck.get(name, 0) + 1
            raise OSError(28, "abuse: " + name)
        setattr(owner, name, method)
    writers = [ring_writer.RingWriter]
    try:
        from whichrank.instrumentation.ring_writer_native import NativeRingWriter
        writers.append(NativeRingWriter)
    except ImportError:
        pass
    for writer in writers:
        for name in NAMES:
            sabotage(writer, name)
    pid = os.getpid()
    def report():
        if os.getpid() == pid and struck:
            (folder / ("struck-%d" % pid)).write_text(repr(sum(struck.values())))
    atexit.register(report)
'''


def sabotaged(*, after_step: int, native: str) -> Callable[[Run], Iterator[None]]:
    def prepare(run: Run) -> Iterator[None]:
        run.rings.mkdir(mode=0o700)
        hidden = run.directory / "hidden"
        hidden.mkdir()
        (hidden / "sitecustomize.py").write_text(SABOTAGE)
        run.environment |= {
            "ABUSE_DIRECTORY": str(run.directory),
            "ABUSE_AFTER_STEP": str(after_step),
            "WHICHRANK_NATIVE": native,
        }
        run.hidden = str(hidden)
        yield
        run.struck = sum(int(file.read_text()) for file in run.directory.glob("struck-*"))

    return prepare
