"""Abuse of the ring folder: full, too small, read-only, missing, removed, somebody else's, its level file switched.

Each function prepares one job, yields while it runs, and then counts in ``run.struck`` what shows that it was abused.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harmless_run import RANKS, SOMEBODY, Run, fill, small_mount


def nothing(run: Run) -> Iterator[None]:
    run.rings.mkdir(mode=0o700)
    yield
    run.struck = len(run.ring_files())  # here the proof is that we did record


def full_before(run: Run) -> Iterator[None]:
    with small_mount(run.rings, "size=256k,mode=700"):
        run.struck = fill(run.rings)
        yield
        run.struck *= not run.ring_files()


def too_small_before(run: Run) -> Iterator[None]:
    with small_mount(run.rings, "size=900k,mode=700"):
        yield
        run.struck = RANKS - len(run.ring_files())  # one ring fits, the other does not


def full_mid_run(run: Run) -> Iterator[None]:
    def strike(run: Run, step: int) -> bool:
        run.struck = fill(run.rings)
        return True

    run.mid_run = strike
    with small_mount(run.rings, "size=8m,mode=700"):
        yield
        run.struck *= len(run.ring_files()) == RANKS


def read_only_before(run: Run) -> Iterator[None]:
    with small_mount(run.rings, "size=8m,mode=700,ro"):
        try:
            (run.rings / "probe").touch()
        except OSError:
            run.struck = 1
        yield
        run.struck *= not run.ring_files()


def read_only_mid_run(run: Run) -> Iterator[None]:
    def strike(run: Run, step: int) -> bool:
        # Mapped files keep a mount busy, so it is covered instead: the folder's name now leads to a read-only one.
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=4k", "whichrank-abuse", str(run.rings)], check=True)
        try:
            (run.rings / "probe").touch()
        except OSError:
            run.struck += 1
        return True

    run.mid_run = strike
    run.rings.mkdir(mode=0o700)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(run.rings)], check=False)


def removed_before(run: Run) -> Iterator[None]:
    # A folder that cannot be made again either.
    run.environment["WHICHRANK_DIR"] = "/proc/whichrank-abuse/rings"
    run.struck = int(not Path("/proc/whichrank-abuse").exists())
    yield


def removed_mid_run(run: Run) -> Iterator[None]:
    def strike(run: Run, step: int) -> bool:
        run.struck = len(run.ring_files())
        shutil.rmtree(run.rings)
        return True

    run.mid_run = strike
    run.rings.mkdir(mode=0o700)
    yield
    run.struck *= not run.rings.exists()


def level_file_mid_run(run: Run) -> Iterator[None]:
    words = iter(["off", "status", "events", "\0\xff nonsense", "off", "events"] * 20)

    def strike(run: Run, step: int) -> bool:
        (run.rings / "level").write_bytes(next(words).encode("latin-1"))
        run.struck += 1
        return run.struck >= 100

    run.mid_run = strike
    run.rings.mkdir(mode=0o700)
    yield


def of_root_while_the_job_is_somebodys(run: Run) -> Iterator[None]:
    run.as_somebody = True
    run.rings.mkdir(mode=0o700)
    yield
    run.struck = RANKS * (run.was_somebodys() and not run.ring_files())


def of_a_third_user_and_open_to_all(run: Run) -> Iterator[None]:
    run.as_somebody = True
    run.rings.mkdir()
    os.chown(run.rings, SOMEBODY + 1, SOMEBODY + 1)
    run.rings.chmod(0o777)  # a ring could be made here, and taken away by its neighbour
    yield
    run.struck = RANKS * (run.was_somebodys() and not run.ring_files())
