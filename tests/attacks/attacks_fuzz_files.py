"""Files that a user writes and root's agent reads: rings, logs, flight-recorder dumps; changed at random by hypothesis.

Not guided by coverage: hypothesis changes what a sound file has, at places that mean something. For `--fuzz-s` seconds
of the clock each (20), and for ten minutes each in `make attacks-long`. What failed is
repeated by its seed: FUZZ_SEED=N.
"""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.attacks.attacks_fuzz import first_seed
from tests.attacks.node import OWN
from tests.attacks.register import Outcome, attack, fuzz_s
from tests.attacks.users import AGENT_LIMIT_MB
from whichrank.agents.base.priority import Priority
from whichrank.agents.base.settings import AgentSettings
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.logs.job_log_events import JobLogEvents
from whichrank.agents.collectors.logs.job_logs import JobLogsCollector
from whichrank.agents.job_agent import Agent
from whichrank.agents.privacy.redaction_filter import mask_dump, pack
from whichrank.agents.rings.ring_texts import mask_ring
from whichrank.diagnosis.flight_recorder.analysis import analyse
from whichrank.diagnosis.flight_recorder.dump_files import BadDump, DumpFiles
from whichrank.instrumentation.ring_writer import RingWriter
from whichrank.telemetry import ring_layout as layout
from whichrank.telemetry.otlp import decode_logs
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS

_MORE_MB = 150
#: One file takes no longer, on any machine.
_SLOWEST_S = 10.0
_EXAMPLES = 50
_WORDS = (
    *(0, 1, 2, 3, 7, 8, 63, 64, 255, 4096, 65_535, 1 << 22, 1 << 24, 1 << 31, 1 << 40, 1 << 61),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 1),
)
_TEXTS = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        ["", "0-65535", "0-", "5-1", "0,0,0", "\x1b]0;x\x07", "\n", "\u202e", "..", "x" * 5000, "NaN", "1e999"]
    ),
)
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(_WORDS), st.just(10**400), _TEXTS
)
_KEYS = st.one_of(
    st.sampled_from(
        ["name", "ranks", "size", "backend", "ordinal", "timeout_s", "uid", "job", "WHICHRANK_JOB_ID", "SLURM_JOB_ID",
         "launcher_pid", "launcher_start_ticks", "host", "script", "notes", "file", "line", "function", "site"]
    ),
    _TEXTS,
)  # fmt: skip
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(_KEYS, inner, max_size=5)),
    max_leaves=20,
)
_BYTES = st.one_of(
    st.sampled_from(_WORDS).map(lambda word: word.to_bytes(8, "little")),
    st.binary(max_size=64),
    _VALUES.map(lambda value: json.dumps(value).encode()),
)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _fuzz(strategy: st.SearchStrategy[Any], act: Callable[[Any], None], seconds: float) -> Outcome:
    """Gives ``act`` one example after another; it raises where something is wrong."""
    first, count, slowest = first_seed(), 0, 0.0
    seen: list[Any] = []

    @settings(max_examples=_EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck),
              phases=(Phase.generate, Phase.target))  # fmt: skip
    @given(strategy)
    def one(example: Any) -> None:
        nonlocal count, slowest
        seen[:] = [example]
        began_s = time.thread_time()
        act(example)
        slowest = max(slowest, time.thread_time() - began_s)
        count += 1

    began, number, wrong = time.monotonic(), first, ""
    act(None)  # the sound one: what is loaded and built once is no growth
    before_mb = _peak_mb()
    while time.monotonic() - began < seconds and not wrong:
        try:
            seed(number)(one)()
        except Exception as error:  # whatever it is: that is what is asked
            wrong = f"seed {number}: {type(error).__name__}: {error}; {str(seen)[:150]}".replace("\n", " / ")
        number += 1
    more_mb = _peak_mb() - before_mb
    return Outcome(
        held=not wrong and more_mb < _MORE_MB and slowest < _SLOWEST_S and count > 0,
        measured=f"seeds {first} to {number - 1}: {count} files, +{more_mb:.0f} MB, the slowest {slowest:.2f} CPU s"
        f"{'; ' if wrong else ''}{wrong}"[:600],
    )


# --- rings ----------------------------------------------------------------------------------------------------------


def _sound_ring(folder: Path) -> bytes:
    """With groups, steps, collectives, an exception and a note."""
    writer = RingWriter.create(
        folder, rank=0, local_rank=0, world_size=2, identity={"WHICHRANK_JOB_ID": "j"}, slots=256
    )
    group = writer.define_group({"name": "default_pg", "ranks": "0-1", "size": 2, "backend": "gloo", "ordinal": 0})
    for _ in range(20):
        seq = writer.enqueue(group, 1, 1 << 20, 1, -1, 0)
        writer.complete(group, seq, time.monotonic_ns(), 0)
        writer.end_step(None, None, 0)
    writer.enqueue(group, 1, 1 << 20, 1, -1, 0)
    writer.beat()
    writer.record_exception("builtins.ValueError: x", [("x.py", 1, "f")], True)
    return writer.path.read_bytes()


def _patches(size: int) -> st.SearchStrategy[list[tuple[int, bytes]]]:
    header = st.integers(1, 24).map(lambda word: word * 8)
    events = layout.HEADER_BYTES + 8 * layout.ROW_BYTES
    places = st.one_of(
        header,
        st.integers(8, layout.HEADER_BYTES + 64),
        st.integers(1, events // 8 + 64).map(lambda word: word * 8),
        st.integers(0, size - 1),
    )
    return st.lists(st.tuples(places, _BYTES), max_size=8)


def _definitions(header: bytes) -> st.SearchStrategy[tuple[int, bytes]]:
    """Groups and sites as a user may write them, at their place."""
    begin = int.from_bytes(header[layout.H_DEFINITIONS_OFFSET : layout.H_DEFINITIONS_OFFSET + 8], "little")

    def entry(kind: int, index: int, value: Any) -> bytes:
        body = json.dumps(value).encode()
        return layout.DEFINITION_HEAD.pack(len(body), kind, index) + body + bytes(-len(body) % 8)

    entries = st.builds(entry, st.integers(0, 6), st.integers(0, 65_535), _VALUES)
    return st.lists(entries, min_size=1, max_size=4).map(lambda found: (begin, b"".join(found)[: 32 << 10]))


def _changed(raw: bytes, patches: list[tuple[int, bytes]], size: int | None) -> bytes:
    copy = bytearray(raw)
    for at, value in patches:
        copy[at : at + len(value)] = value[: max(0, len(copy) - at)]
    return bytes(copy) if size is None else bytes(copy[:size]).ljust(size, b"\0")


def _fuzz_rings(seconds: float) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix="attack-fuzz-", dir="/dev/shm"))
    place = folder / "rings"
    place.mkdir()
    sound = _sound_ring(folder)
    examples = st.tuples(
        _patches(len(sound)),
        st.one_of(st.none(), _definitions(sound)),
        st.one_of(st.none(), st.none(), st.integers(0, len(sound) + (1 << 20))),
        _patches(len(sound)),
    )

    def act(example: Any) -> None:
        patches, definitions, size, later = example or ([], None, None, [])
        first = _changed(sound, [*patches, *([definitions] if definitions else [])], size)
        _read_ring(place, [first, _changed(first, [each for each in later if each[0] < len(first)], None)])
        mask_ring(first)
        pack(first, "ring.gz")

    try:
        return _fuzz(examples, act, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read_ring(place: Path, contents: list[bytes]) -> None:
    """An agent reads it, and reads it again when it has changed."""
    clock = [time.monotonic_ns()]
    messages: list[tuple[str, bytes]] = []

    def publish(topic: str, key: str, value: bytes, priority: Priority) -> None:
        messages.append((topic, value))

    path = place / "x.ring"
    path.write_bytes(contents[0])
    agent = Agent(
        ring_directory=place, publish=None, publish_ranked=publish, identity=OWN, since_ns=0,
        settings=AgentSettings(tell_people=True, history_s=60.0, take_stacks=False),
        monotonic_ns=lambda: clock[0],
    )  # fmt: skip
    try:
        for content in (contents[0], *contents):
            with path.open("r+b") as file:
                file.truncate(len(content))
                file.write(content)
            for _ in range(2):
                clock[0] += 1_100_000_000
                agent.poll()
    finally:
        agent.close()
        path.unlink()
    if agent.health.drops["poll_failed"]:
        raise AssertionError(str([line for line in agent.health.problems if "poll failed" in line]))
    for topic, value in messages:
        if topic in (TOPIC_BLOCKS, TOPIC_LOGS):
            refused = [each for each in decode_logs(topic, value) if type(each).__name__ == "Broken"]
            if refused:
                raise AssertionError(f"sent what nobody can read: {refused[0]}")


@attack("F5", "a", "rings changed at random: header, rows, events, definitions, texts, length",
        asked="no look fails, what is sent can be read", limit_s=120, fuzz=True, memory_mb=AGENT_LIMIT_MB)  # fmt: skip
def rings(folder: Path) -> Outcome:
    return _fuzz_rings(fuzz_s())


# --- logs -----------------------------------------------------------------------------------------------------------

_LOG = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/data/train.py", line 31, in save
[rank0]:     torch.save(model.state_dict(), path)
[rank0]: OSError: [Errno 28] No space left on device: '/ckpt/step_500.pt'
[rank1]:[E1129 18:00:00.000 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds
RuntimeError: CUDA error: unspecified launch failure
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB
slurmstepd: error: *** STEP 4711.0 ON node-a CANCELLED AT 2026-11-29T18:00:00 DUE TO TIME LIMIT ***
node-b: NCCL WARN NET/IB : Got completion from peer 10.0.0.1<4711> with status=12 opcode=0 len=0 vendor err 129
srun: error: node-a: task 3: Out Of Memory
 {'loss': 1.5, 'grad_norm': nan, 'epoch': 0.1}  100%|#####| 500/500 [00:10<00:00, 50.00it/s]\r
Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File "x.py", line 1 in f
password=hunter2 AWS_SECRET_ACCESS_KEY=abcdefghijklmnopqrstuvwxyz012345678901234
""".splitlines(keepends=True)


def _lines() -> st.SearchStrategy[bytes]:
    """Lines of real logs, cut, doubled, joined and mixed with noise."""
    line = st.sampled_from(_LOG).map(str.encode)
    cut = st.builds(
        lambda text, at, to: text[min(at, to) : max(at, to)], line, st.integers(0, 200), st.integers(0, 200)
    )
    noise = st.one_of(
        st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.sampled_from([b"\n", b"\r", b"\0" * 500, b"\x1b[31m", b" " * 3000 + b"\n", b"x" * 70_000, b"(" * 3000]),
        st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=8), st.integers(1, 2000)),
    )  # fmt: skip
    return st.lists(st.one_of(line, cut, noise), max_size=20).map(b"".join)


def _fuzz_logs(folder: Path, seconds: float) -> Outcome:
    log = folder / "rank_3.log"
    examples = st.lists(_lines(), min_size=1, max_size=3)

    def act(example: Any) -> None:
        log.write_bytes(b"began\n")
        events = JobLogEvents(tuple, node="n1")
        collector = JobLogsCollector(events, patterns=[str(folder / "*.log")], flush=events.flush)
        now_ns = time.monotonic_ns()
        try:
            for number, piece in enumerate((b"", *(example or ["".join(_LOG).encode()]), b"", b"")):
                with log.open("ab") as file:
                    file.write(piece)
                now_ns += 40_000_000_000 * (1 + number)
                seen = collector.collect(Timestamps(wall_ns=now_ns, mono_ns=now_ns))
                if any("Error" in line for line in getattr(seen, "problems", ())):
                    raise AssertionError(str(seen))
        finally:
            collector.close()
        pack(log.read_bytes()[-(128 << 10) :], "text")

    return _fuzz(examples, act, seconds)


@attack("F6", "a", "lines of logs, cut, doubled, joined and mixed with noise", asked="no look fails", limit_s=120,
        fuzz=True, memory_mb=AGENT_LIMIT_MB)  # fmt: skip
def logs(folder: Path) -> Outcome:
    return _fuzz_logs(folder, fuzz_s())


# --- dumps of the flight recorder -----------------------------------------------------------------------------------


def _sound_dump() -> dict[str, Any]:
    entries = [
        {
            "frames": [{"name": "f", "filename": "x.py", "line": 1}], "record_id": number, "pg_id": 0,
            "process_group": ("0", "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number,
            "profiling_name": "nccl:all_reduce", "time_created_ns": 1_700_000_000_000_000_000 + number,
            "input_sizes": ((3, 4),), "input_dtypes": ["Float"], "output_sizes": ((3, 4),), "output_dtypes": ["Float"],
            "state": "completed", "timeout_ms": 600_000, "is_p2p": False, "retired": True,
            "time_discovered_started_ns": None, "time_discovered_completed_ns": 2,
        }
        for number in range(4)
    ]  # fmt: skip
    return {
        "version": "2.4", "rank": 0, "entries": entries,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {f"last_{what}_collective": 3 for what in ("enqueued", "started", "completed")}},
    }  # fmt: skip


_DUMP_KEYS = ("version", "rank", "entries", "pg_config", "pg_status")
_ENTRY_KEYS = tuple(_sound_dump()["entries"][0])


def _dumps() -> st.SearchStrategy[bytes]:
    """Sound dumps with other values, as pickles of any protocol or JSON, and then with bytes changed."""

    def made(
        changes: list[tuple[str, Any]], of_entry: list[tuple[int, str, Any]], form: int, patches: Any, end: int
    ) -> bytes:
        dump = _sound_dump()
        for number, key, value in of_entry:
            dump["entries"][number][key] = value
        dump.update(changes)
        raw = json.dumps(dump).encode() if form > pickle.HIGHEST_PROTOCOL else pickle.dumps(dump, protocol=form)
        copy = bytearray(raw)
        for at, value in patches:
            place = at % (len(copy) + 1)
            copy[place : place + len(value)] = value
        return bytes(copy[: len(copy) - end] if end < len(copy) else copy)

    return st.builds(
        made,
        st.lists(st.tuples(st.sampled_from(_DUMP_KEYS), _VALUES), max_size=2),
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from(_ENTRY_KEYS), _VALUES), max_size=4),
        st.integers(0, pickle.HIGHEST_PROTOCOL + 1),
        st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=6)), max_size=4),
        st.sampled_from([0, 0, 0, 1, 7, 100]),
    )


def _fuzz_dumps(seconds: float) -> Outcome:
    def act(example: Any) -> None:
        raw = pickle.dumps(_sound_dump()) if example is None else example
        files = DumpFiles(2)
        for name in ("trace_rank_0", "trace_rank_1"):
            try:
                files.add(name, raw)
            except BadDump as wrong:
                if "\n" in str(wrong):
                    raise AssertionError("more than one line") from wrong
        analyse(files.dumps)
        mask_dump(raw)

    return _fuzz(_dumps(), act, seconds)


@attack("F7", "a", "dumps of the flight recorder with other values and other bytes: pickles of each protocol, JSON",
        asked="a reason in one line, or a diagnosis", limit_s=120, fuzz=True, memory_mb=AGENT_LIMIT_MB)  # fmt: skip
def dumps(folder: Path) -> Outcome:
    return _fuzz_dumps(fuzz_s())
