"""Collectors for tests of ``schedule``: one that sees, one that raises, one that never comes back."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from whichrank.agents.collectors.base.collector import Collected, Collector, Timestamps
from whichrank.telemetry.records import Point


class Seeing:
    name = "seeing"
    period_s = 0.05

    def __init__(self) -> None:
        self._looks = 0

    def collect(self, now: Timestamps) -> Collected:
        self._looks += 1
        point = Point(name="whichrank.collector.late", value=self._looks, time_ns=now.wall_ns)
        return Collected(points=[point], problems=["no driver"])

    def close(self) -> None:
        """Nothing to close."""


class Listening(Seeing):
    """Looks once in an hour; between looks its source speaks."""

    period_s = 3600.0

    def wait(self, timeout_s: float) -> Collected:
        time.sleep(0.01)
        return super().collect(Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns()))


class Raising(Seeing):
    def collect(self, now: Timestamps) -> Collected:
        raise OSError("the file is not there")


class Blind(Seeing):
    """Its source cannot be read for the first two looks."""

    def collect(self, now: Timestamps) -> Collected:
        return replace(super().collect(now), blind=self._looks <= 2)


class Hanging(Seeing):
    """Sees once, and hangs while ``flag`` is there; writes its pid into ``pids``."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)
        with (self._folder / "pids").open("a") as pids:
            pids.write(f"{os.getpid()}\n")

    def collect(self, now: Timestamps) -> Collected:
        while self._looks and (self._folder / "hang").exists():
            time.sleep(0.01)
        print("a driver that prints")
        return super().collect(now)


def seeing() -> Collector:
    return Seeing()


def raising() -> Collector:
    return Raising()


def blind() -> Collector:
    return Blind()


def hanging(folder: str) -> Collector:
    return Hanging(folder)


def listening() -> Collector:
    return Listening()
