"""The job given to a cluster by the words that ``whichrank process --engine flink`` uses."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.stack.flink.fed_jobs import Feed
from tests.stack.parts.flink import PYTHON, Flink
from whichrank.commands.services.flink_process import submission_command, variables_of
from whichrank.commands.settings.settings import ProcessOptions, load_settings

SUBMIT_S = 240.0


def options_of(flink: Flink, feed: Feed, *, parallelism: int, savepoint: str = "", beats: int = 0) -> ProcessOptions:
    given: dict[str, str | int | float | bool | Path | None] = {
        "kafka": feed.settings.brokers,
        "kafka_topic_prefix": feed.settings.topic_prefix,
        "engine": "flink",
        "flink": flink.rest,
        "flink_home": str(flink.home),
        "flink_parallelism": parallelism,
        "flink_savepoint": savepoint,
        "flink_beats": beats,
    }
    return load_settings(ProcessOptions, given)[0]


def submit(flink: Flink, feed: Feed, *, parallelism: int, savepoint: str = "", beats: int = 0) -> None:
    """Not by the command itself, which refuses topics whose stamps are not the broker's. Waits until the job runs."""
    options = options_of(flink, feed, parallelism=parallelism, savepoint=savepoint, beats=beats)
    words = submission_command(options)
    for place, word in enumerate(words[:-1]):
        if word in ("-pyexec", "-pyclientexec"):
            words[place + 1] = str(PYTHON)
    done = subprocess.run(
        words,
        env={**flink.environment, **variables_of(options)},
        capture_output=True,
        text=True,
        timeout=SUBMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    flink.wait_for_state("RUNNING")
