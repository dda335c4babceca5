"""Packed logs are read as what they hold, in bounded memory; what is no log is refused in one line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from typer.testing import CliRunner, Result

from tests.diagnosis.flight_recorder.played_job import OPEN, PlayedJob
from whichrank.commands.diagnose.input_file import Unreadable
from whichrank.commands.diagnose.packed_file import opened, text_only, without_suffix
from whichrank.commands.main import app

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: bytes(zstandard.ZstdCompressor().compress(data)),
}
#: To pack what does not fit into memory: the function that takes a piece, and that of the end.
STREAMS: dict[str, Callable[[], tuple[Callable[[bytes], bytes], Callable[[], bytes]]]] = {
    ".gz": lambda: _both(zlib.compressobj(1, wbits=31)),
    ".bz2": lambda: _both(bz2.BZ2Compressor(1)),
    ".xz": lambda: _both(lzma.LZMACompressor(preset=0)),
    ".zst": lambda: _both(zstandard.ZstdCompressor().compressobj()),
}
JOB_LOG = (
    b"[rank2]: Traceback (most recent call last):\n"
    b'[rank2]:   File "/job/train.py", line 11, in <module>\n'
    b'[rank2]:     raise ValueError("a bad sample")\n'
    b"[rank2]: ValueError: a bad sample\n"
)
KERNEL_LOG = (
    b"2026-01-31T12:00:00.000000+00:00 node-02 kernel: [ 123.456789] "
    b"NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.\n"
)
PORTS = b'{"time": 1, "node": "n1", "port": "mlx5_0/1", "state": "active", "link_downed": 0}\n'
#: Of each kind of file that a reader of text is given by mistake.
JUNK = {
    "random": random.Random(7).randbytes(40_000),
    "a program": Path(sys.executable).resolve().read_bytes()[:100_000],
    "a ring": b"WRNG" + (1234567).to_bytes(8, "little") * 900,
    "wide characters that do not say what they are": ("an error\n" * 900).encode("utf-16-le"),
}


def _both(packer: Any) -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    return packer.compress, packer.flush


def diagnose(*words: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["diagnose", *map(str, words)], input=stdin)


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize(
    ("command", "log", "says"),
    [("job-log", JOB_LOG, "ValueError"), ("kernel-log", KERNEL_LOG, "restart_without_node")],
)
def test_a_packed_log_says_what_it_says_unpacked(
    command: str, log: bytes, says: str, suffix: str, tmp_path: Path
) -> None:
    plain, packed = tmp_path / "rank_2.log", tmp_path / f"rank_2.log{suffix}"
    plain.write_bytes(log)
    packed.write_bytes(PACKERS[suffix](log))
    told, told_packed = diagnose(command, plain), diagnose(command, packed)
    assert (told.exit_code, told_packed.exit_code) == (0, 0), told_packed.output
    assert says in told.stdout
    assert told_packed.stdout.replace(suffix, "") == told.stdout.replace(suffix, "")
    assert says in diagnose(command, "-", stdin=PACKERS[suffix](log)).stdout


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    ("command", "log", "says"), [("job-log", JOB_LOG, "ValueError"), ("kernel-log", KERNEL_LOG, "xid")]
)
def test_what_windows_writes_is_read(command: str, log: bytes, says: str, encoding: str, tmp_path: Path) -> None:
    """UTF-16 with a mark at its begin, longer than one read of it, with characters of two words and half of one."""
    path = tmp_path / "rank_2.log"
    path.write_bytes(log)
    told = diagnose(command, path)
    text = "\ufeff" + log.decode()
    path.write_bytes(text.encode(encoding))
    assert diagnose(command, path).stdout == told.stdout
    assert says in told.stdout
    path.write_bytes((text + "step 1 \U0001f3d6\n" * 40_000).encode(encoding) + b"\n")
    with opened("x", path) as file:
        read = text_only("x", file).read().decode()
    assert read.rstrip("\ufffd") == log.decode() + "step 1 \U0001f3d6\n" * 40_000


def test_whose_log_it_is_stands_before_the_packers_suffix(tmp_path: Path) -> None:
    assert without_suffix("logs/rank_3.log.gz") == "logs/rank_3.log"
    assert without_suffix("rank_3.log") == "rank_3.log"


def test_packed_parts_one_after_another_are_one_log(tmp_path: Path) -> None:
    for suffix, pack in PACKERS.items():
        path = tmp_path / f"x{suffix}"
        path.write_bytes(pack(b"one\n") + pack(b"two\n"))
        with opened("x", path) as file:
            assert file.read() == b"one\ntwo\n", suffix


def test_dumps_may_be_packed(tmp_path: Path) -> None:
    job = PlayedJob(4)
    job.call("0")
    job.call("0", by=[0, 1, 2], state=OPEN, line=88)
    for name, content in job.files().items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    told = diagnose("flight-recorder", tmp_path)
    assert (told.exit_code, "not_entered" in told.stdout) == (0, True), told.output


def test_series_of_counters_may_be_packed(tmp_path: Path) -> None:
    (tmp_path / "ports.jsonl").write_bytes(PORTS)
    (tmp_path / "ports.jsonl.xz").write_bytes(lzma.compress(PORTS))
    plain, packed = (diagnose("counters", tmp_path / name) for name in ("ports.jsonl", "ports.jsonl.xz"))
    assert (packed.exit_code, packed.stdout.replace(".xz", "")) == (plain.exit_code, plain.stdout)


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("command", ["job-log", "kernel-log", "counters", "steps"])
def test_what_was_cut_off_is_told_in_one_line(command: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(PACKERS[suffix](random.Random(1).randbytes(300_000).hex().encode())[:-2000])
    told = diagnose(command, path)
    assert told.exit_code == 2
    assert told.stdout == ""
    assert told.stderr.count("\n") == 1
    assert str(path) in told.stderr
    assert "cannot be unpacked to its end" in told.stderr


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("command", ["job-log", "kernel-log", "counters", "steps"])
def test_what_is_no_text_is_refused_and_not_called_well(command: str, junk: str, tmp_path: Path) -> None:
    path = tmp_path / "junk"
    for content in (JUNK[junk], gzip.compress(JUNK[junk])):
        path.write_bytes(content)
        told = diagnose(command, path)
        assert (told.exit_code, told.stdout, told.stderr.count("\n")) == (2, "", 1), told.stderr
        assert f"{path}: this is no text" in told.stderr


def test_what_terminals_and_lost_power_leave_in_a_log_is_text(tmp_path: Path) -> None:
    for content in (
        b"\0" * 100_000 + JOB_LOG,
        JOB_LOG + b"\0" * 5000 + JOB_LOG,
        b"\x1b[31mstep 1\x1b[0m\r\x1b[2Kstep 2\b\b\a\n" * 100,
        "erreur: mémoire épuisée\n".encode("latin-1") * 100,
        "Schritt 1: Verlust µ± 🏖\n".encode() * 100,
        b"",
    ):
        assert text_only("x", io.BufferedReader(io.BytesIO(content))).read() == content


def test_the_other_logs_of_a_job_are_read_though_one_is_junk(tmp_path: Path) -> None:
    (tmp_path / "kern.log").write_bytes(KERNEL_LOG)
    (tmp_path / "junk").write_bytes(JUNK["random"])
    told = diagnose("kernel-log", tmp_path / "kern.log", tmp_path / "junk")
    assert (told.exit_code, "restart_without_node" in told.stdout) == (2, True)


def test_layers_end(tmp_path: Path) -> None:
    """A file that was packed ten times is no text when the layers that are read have been taken off."""
    data = b"words\n"
    for _ in range(10):
        data = gzip.compress(data)
    (tmp_path / "x.gz").write_bytes(data)
    with opened("x.gz", tmp_path / "x.gz") as file, pytest.raises(Unreadable):
        text_only("x.gz", file)


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_small_file_that_unpacks_to_a_gigabyte_takes_no_memory(suffix: str, tmp_path: Path) -> None:
    """Read by a process that may have little more than it has when it begins."""
    path = tmp_path / f"bomb{suffix}"
    line = b"step 1 loss 2.5 " * 4096
    times = 4000 if suffix == ".zst" else 1000
    compress, flush = STREAMS[suffix]()
    with path.open("wb") as file:
        for _ in range(times):
            file.write(compress(line))
        file.write(flush())
    script = (
        "import sys, resource\n"
        "from pathlib import Path\n"
        "from whichrank.commands.diagnose.packed_file import opened\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with opened('x', Path(sys.argv[1])) as file:\n"
        "    count = sum(len(block) for block in iter(lambda: file.read(1 << 20), b''))\n"
        "print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    count, more_kb = map(int, done.stdout.split())
    assert count == len(line) * times
    assert more_kb < 40_000
