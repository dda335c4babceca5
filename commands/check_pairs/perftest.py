"""Bandwidth of a pair by perftest's ``ib_write_bw``, where it is installed and the node has RDMA devices.

It takes the place of what torch measured for many bytes; latency and stalls stay torch's. Whoever leads is the client.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from .exchange import Effort, Timed
from .pair_session import PairRank

PROGRAM = "ib_write_bw"
_FIRST_PORT, _PORTS = 21_000, 4_000
_AGAIN_S = 0.3
_DEVICES = Path("/sys/class/infiniband")
#: A line of its table: bytes, iterations, peak, average (MiB/s or Gb/s), messages.
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+", re.MULTILINE)


class Perftest:
    """Of one rank: its device is that of its rail, in the order of their names."""

    def __init__(self, store: Any, place: PairRank, devices: Path = _DEVICES) -> None:
        self._store, self._place = store, place
        self._program = shutil.which(PROGRAM)
        names = sorted(each.name for each in devices.iterdir()) if devices.is_dir() else []
        self._device = names[place.rail % len(names)] if names else ""
        self.problem = "" if self._program and names else f"{PROGRAM} or RDMA devices are not here: torch measures"

    def instead_of(self, timed: Timed, partner: int, tag: int, effort: Effort, *, leads: bool) -> Timed:
        """The same with perftest's bandwidth, where both ends have it and it gives one."""
        own, other = sorted((self._place.rank, partner))
        key = f"perftest/{own}-{other}/{tag}"
        mine = {"ready": not self.problem, "host": socket.gethostname()}
        self._store.set(f"{key}/{self._place.rank}", json.dumps(mine))
        if not self._is_there(f"{key}/{partner}", effort):
            return timed
        theirs = json.loads(self._store.get(f"{key}/{partner}"))
        if self.problem or not theirs["ready"]:
            return timed
        port = _FIRST_PORT + (own * 8191 + other * 31 + tag) % _PORTS
        words = [str(self._program), "-d", self._device, "-p", str(port), "-F", "-b", "--report_gbits", "-D", "1"]
        if leads:
            if not self._is_there(f"{key}/listens", effort):
                return timed
            words.append(str(theirs["host"]))
        gbits = 0.0
        until_s = time.monotonic() + effort.limit_s
        # The other end says that it has begun, not that it listens already.
        while not gbits and time.monotonic() < until_s:
            gbits = self._run(words, key, effort, leads=leads)
            if not leads:
                break
            time.sleep(0.0 if gbits else _AGAIN_S)
        # Both directions together, as the program counts with -b.
        return replace(timed, seconds=effort.size_bytes / (gbits / 2 * 1e9 / 8)) if gbits else timed

    def _is_there(self, key: str, effort: Effort) -> bool:
        """Whether the other end has said it in time: of an exchange that failed there, it says nothing."""
        try:
            self._store.wait([key], timedelta(seconds=effort.limit_s))
        except RuntimeError:
            return False
        return True

    def _run(self, words: list[str], key: str, effort: Effort, *, leads: bool) -> float:
        child = None
        try:
            child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if not leads:
                self._store.set(f"{key}/listens", "1")
            said, _ = child.communicate(timeout=effort.limit_s)
            return gbits_of(said)
        except (OSError, subprocess.TimeoutExpired):
            if child is not None:
                child.kill()
                child.wait()
            return 0.0


def gbits_of(said: str) -> float:
    """The average in the last row of the program's table; 0 where there is none."""
    rows = _ROW.findall(said)
    return float(rows[-1]) if rows else 0.0
