"""Packs what it takes to judge a real run again: run.json and what the operators read of its capture, without paths."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from whichrank.commands.embedded.embedded_operators import INPUT_TOPICS
from whichrank.commands.run_folder.run_directory import RUN_FILE, RunDirectory
from whichrank.transport.embedded import EmbeddedBus

#: Of run.json; the rest says where the run was, which no judgement asks for.
_KEPT = ("schema", "job", "name", "started", "ended", "exit_code", "listens")
#: So many messages are read at a time.
_AT_A_TIME = 1000


def pack(run: Path, target: Path, hidden: Sequence[tuple[str, str]]) -> None:
    """hidden: paths of this machine, each with what stands for it, of the same length: lengths are part of messages.

    Raises ValueError where one has not.
    """
    for path, stand_in in hidden:
        if len(path.encode()) != len(stand_in.encode()):
            raise ValueError(f"{path} and {stand_in} differ in length")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _copy_capture(RunDirectory(run).capture, folder / "capture", hidden)
        description = json.loads((run / RUN_FILE).read_text())
        kept = {name: description[name] for name in _KEPT if name in description}
        (folder / RUN_FILE).write_text(json.dumps(kept, indent=1) + "\n")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for file in sorted(folder.rglob("*")):
                if file.name != "lock":
                    archive.add(file, str(file.relative_to(folder)), recursive=False, filter=_nobody)


def _nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _copy_capture(source: Path, target: Path, hidden: Sequence[tuple[str, str]]) -> None:
    stamp_ns = 0
    read = EmbeddedBus(source, read_only=True)
    written = EmbeddedBus(target, start_wall_ns=0, monotonic_ns=lambda: stamp_ns)
    after = 0
    while messages := read.read(after, _AT_A_TIME):
        for message in messages:
            after = message.position
            if message.topic not in INPUT_TOPICS:
                continue
            stamp_ns = message.stamp_ns
            value = message.value
            for path, stand_in in hidden:
                value = value.replace(path.encode(), stand_in.encode())
            written.append(message.topic, message.key, value, message.headers)
    written.close()
    read.close()
