"""Writes /proc trees of processes: stat, environment, mapped files, working folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.agents.collectors.port_tree import write

AFTER_PARENT = "1 1 0 -1 4194304 " + "0 " * 12 + "{start} 1 1 1 1 1 1 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0"


def process(
    proc: Path,
    pid: int,
    environ: Mapping[str, str],
    *,
    parent: int = 1,
    start: int = 1000,
    maps: Iterable[str] = (),
    cwd: str = "/",
    root: Path | None = None,
) -> Path:
    """``root``: of the container's files; maps: paths inside of it."""
    folder = proc / str(pid)
    lines = [f"7f{n:010x}-7f{n + 1:010x} r-xp 00000000 103:02 {n + 9}    {path}" for n, path in enumerate(maps)]
    write(
        folder,
        {
            "stat": f"{pid} (pt main (x)) S {parent} " + AFTER_PARENT.format(start=start),
            "environ": b"\0".join(f"{key}={value}".encode() for key, value in environ.items()) + b"\0",
            "maps": "\n".join(lines),
            "status": f"Name:\tpt main\nUid:\t{os.getuid()}\t{os.getuid()}\t{os.getuid()}\t{os.getuid()}\n",
        },
    )
    for name, target in (("cwd", Path(cwd)), ("root", root or proc)):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(target)
    return folder
