"""``whichrank process --engine flink``: submits the job unless it runs, then answers for its health until it is ended.

The job is Flink's from then on: it goes on when this process ends, and is stopped with Flink's own means, with a
savepoint (docs/flink.md).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import SecretStr

from ...transport.bus import TOPIC_CLOCK
from ...transport.kafka import make_client
from ...transport.kafka_client import KafkaTrouble
from ...transport.kafka_topics import check_topics
from ..settings.settings import ProcessOptions
from ..settings.settings_sources import ENVIRONMENT_PREFIX
from ..support.addresses import split_address
from ..support.ending import EndRequest
from ..support.health_server import PageServer
from ..support.stderr import say
from .flink_cluster import FlinkCluster, FlinkJob, figures_of

EXIT_USAGE, EXIT_FAILED = 2, 1
DEFAULT_PORT = 8461
JOB_NAME, LAST_STAGE = "whichrank", "clusters"
#: The module that ``flink run`` starts.
SUBMISSION = "whichrank.commands.services.flink_submission"
SUBMIT_S = 600.0
LOOK_S = 2.0
#: Ready: no more behind than this, by the watermark of the last stage and by the age of the last checkpoint.
MOST_BEHIND_S = 15.0
#: A judge of the embedded engine writes into the clock every 3 s.
OTHER_JUDGE_S = 10.0


def process_on_flink(options: ProcessOptions, *, print_only: bool) -> int:
    """Runs until SIGTERM or SIGINT; the exit status: 0; 1 where the job ended; 2 where it could not be submitted.

    print_only: only prints the command that submits the job, without secrets.
    """
    if options.shadow:
        say("--shadow is for the embedded engine: a job on Flink publishes; give it topics of its own to try it")
        return EXIT_USAGE
    command = submission_command(options)
    if print_only:
        shown = {name: value for name, value in variables_of(options).items() if "PASSWORD" not in name}
        print(" ".join([*(f"{name}={shlex.quote(value)}" for name, value in shown.items()), shlex.join(command)]))
        return 0
    cluster = FlinkCluster(options.flink)
    try:
        job = cluster.find(JOB_NAME)
        if job is None:
            _check_kafka(options)
            job = _submit(command, options, cluster)
        else:
            say(f"the job runs already on Flink at {options.flink}: {job}")
    except KafkaTrouble as trouble:
        for line in str(trouble).splitlines():
            say(line)
        return EXIT_USAGE
    except OSError as error:
        say(f"Flink at {options.flink} does not answer ({error}); name its JobManager with --set flink=HOST:PORT")
        return EXIT_USAGE
    return EXIT_USAGE if job is None else _watch(cluster, job, options)


def submission_command(options: ProcessOptions) -> list[str]:
    """The words that submit the job; what it is set to comes by variables (``variables_of``)."""
    home = options.flink_home or Path(os.environ.get("FLINK_HOME", ""))
    program = str(home / "bin" / "flink") if str(home) != "." else "flink"
    words = [program, "run", "-d", "-m", options.flink]
    if options.flink_parallelism:
        words += ["-p", str(options.flink_parallelism)]
    if options.flink_savepoint:
        words += ["-s", options.flink_savepoint]
    return [*words, "-pyclientexec", sys.executable, "-pyexec", sys.executable, "-pym", SUBMISSION]


def variables_of(options: ProcessOptions) -> dict[str, str]:
    """The settings that the submission reads, as variables: flags and the file's are in them by then."""
    found: dict[str, str] = {}
    for name in type(options).model_fields:
        value = getattr(options, name)
        if name.startswith(("kafka", "disable", "flink_")) and value not in (None, ""):
            text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            if text:
                found[f"{ENVIRONMENT_PREFIX}{name.upper()}"] = text
    return found


def _check_kafka(options: ProcessOptions) -> None:
    """Raises KafkaTrouble where topics are not as they must be, or an embedded judge is at work."""
    client = make_client(options.kafka_settings(client_id="whichrank-flink-submit"))
    admin = client.admin()
    try:
        found = check_topics(admin)
    finally:
        admin.close()
    most = max(facts.partitions for facts in found.values())
    if options.flink_parallelism > most:
        raise KafkaTrouble(
            f"flink_parallelism {options.flink_parallelism} is more than the {most} partitions of any topic: some "
            f"readers would have none, and time would stand still; choose {most} or less",
            lasting=True,
        )
    clock, consumer = (TOPIC_CLOCK, 0), client.consumer(committed_only=True)
    try:
        consumer.partitions(TOPIC_CLOCK)
        begin, end = consumer.bounds([clock])[clock]
        if end <= begin:
            return
        consumer.assign({clock: max(begin, end - 2)})
        newest_ns = max((each.stamp_ns for each in consumer.poll(2.0)), default=0)
    finally:
        consumer.close()
    if time.time_ns() - newest_ns < OTHER_JUDGE_S * 1e9:
        raise KafkaTrouble("a whichrank process of the embedded engine judges these topics; end it first", lasting=True)


def _submit(command: Sequence[str], options: ProcessOptions, cluster: FlinkCluster) -> str | None:
    """The job's id; None where Flink refused, which was said. Raises OSError where the cluster does not answer."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **variables_of(options)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SUBMIT_S,
            check=False,
        )
    except FileNotFoundError:
        say(f"{command[0]} is not there; name Flink's home with --set flink_home=FOLDER or FLINK_HOME (docs/flink.md)")
        return None
    except subprocess.TimeoutExpired:
        say(f"{command[0]} has not submitted the job within {SUBMIT_S:.0f} s")
        return None
    job = cluster.find(JOB_NAME)
    if done.returncode or job is None:
        lines = (done.stdout + done.stderr).strip().splitlines()
        causes = [line for line in lines if "rror" in line or "Caused by" in line or "xception" in line]
        for line in (causes or lines)[-6:]:
            say(f"flink run: {line.strip()[:300]}")
        return None
    say(f"submitted to Flink at {options.flink}: {job}")
    return job


class FlinkJobWatch(Collector):
    """Looks at the job every few seconds, in a thread of the caller; answers from any thread."""

    def __init__(self, cluster: FlinkCluster, job: str) -> None:
        self._cluster, self._id = cluster, job
        self._lock = threading.Lock()
        self._job = FlinkJob(id=job, state="UNKNOWN")
        self._trouble = "not asked yet"

    def look(self) -> FlinkJob:
        """The job as it is now, or as it was last seen."""
        try:
            job, trouble = self._cluster.look(self._id, LAST_STAGE), ""
        except OSError as error:
            job, trouble = self._job, str(error)
        with self._lock:
            if trouble and trouble != self._trouble:
                say(f"Flink does not answer ({trouble}); trying again")
            self._job, self._trouble = job, trouble
        return job

    def alive(self) -> tuple[bool, str]:
        """Whether Flink answers, and what is known, as JSON."""
        with self._lock:
            return not self._trouble, self._as_json()

    def ready(self) -> tuple[bool, str]:
        """Whether the job runs, keeps its state and is not behind, and what is known, as JSON."""
        with self._lock:
            figures = {name: value for name, _, value in figures_of(self._job, _now_ms())}
            behind_s = max(figures.get(name, float("inf")) for name in ("lag_seconds", "checkpoint_age_seconds"))
            is_good = not self._trouble and bool(figures["running"]) and behind_s <= MOST_BEHIND_S
            return is_good, self._as_json()

    def collect(self) -> Iterator[Metric]:
        """The job's figures, for Prometheus."""
        with self._lock:
            job, trouble = self._job, self._trouble
        yield GaugeMetricFamily("whichrank_flink_reachable", "0 while Flink does not answer", value=float(not trouble))
        for name, meaning, value in figures_of(job, _now_ms()):
            yield GaugeMetricFamily(f"whichrank_flink_{name}", meaning, value=value)

    def _as_json(self) -> str:
        told = {"job": self._job.id, "state": self._job.state, "flink": self._trouble or "ok"}
        figures = {name: round(value, 3) for name, _, value in figures_of(self._job, _now_ms())}
        return json.dumps({**told, **figures})


def _watch(cluster: FlinkCluster, job: str, options: ProcessOptions) -> int:
    watch, ending = FlinkJobWatch(cluster, job), EndRequest()
    watch.look()
    server: PageServer | None = None
    if options.health:
        pages = {"/healthz": watch.alive, "/readyz": watch.ready}
        try:
            server = PageServer(*split_address(options.health, DEFAULT_PORT), pages, watch)
        except OSError as error:
            say(f"health at {options.health}: {error.strerror or error}; choose another with --health")
            return EXIT_USAGE
    try:
        while not ending.asked:
            state = watch.look().state
            if state in ("FAILED", "CANCELED", "FINISHED", "SUSPENDED"):
                say(f"the job has ended: {state}")
                return EXIT_FAILED
            ending.wait(LOOK_S)
    finally:
        if server is not None:
            server.close()
    say("ends; the job goes on in Flink")
    return 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
