"""``whichrank agent``: one per node, for jobs that ``whichrank run`` did not start; what it sees goes to Kafka.

The main thread looks for jobs and waits for SIGTERM; each job, the publisher and the requests have their own threads.
It ends within five seconds: what Kafka has not taken by then is in the spool, for the next one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import socket
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from ...agents.base.settings import AgentSettings
from ...agents.collectors.collector_plans import node_plans
from ...agents.collectors.schedule import NodeTelemetry
from ...agents.evidence.request_reader import RequestReader
from ...agents.node_agent import NodeAgent
from ...agents.node_reports import NodeReports
from ...agents.publish.broker_clock import BrokerClock
from ...agents.user_files.capabilities import can_become_others, keep_needed
from ...telemetry.identity import read_pod_labels, resolve_identity
from ...telemetry.records import Identity
from ...transport.kafka_client import Client, KafkaTrouble
from ..otlp_out.environment import use_endpoint
from ..otlp_out.otlp_sender import OtlpSender
from ..settings.check_options import what_is_wrong_with
from ..settings.settings import AgentOptions
from ..support.gc_tuning import search_seldom
from ..support.stderr import SayHandler, say
from .agent_ways import AgentWays
from .kafka_service import make_publisher

_LOOK_S = 0.5
#: Of the five seconds that an end may take: the agents' last words, then Kafka.
_LAST_WORDS_S, _LAST_SENDS_S = 1.5, 1.5

EXIT_USAGE = 2
REQUESTS_PER_MINUTE = 30
#: Of each ring, for requests.
HISTORY_S = 120.0
#: Touched with every look: who gave a sign of life after it, nobody watched to the end.
ALIVE_FILE = "alive"
#: What was installed when last looked.
VERSIONS_FILE = "versions.json"


def service_settings(options: AgentOptions) -> AgentSettings:
    """Settings of the agent as a service.

    Beyond ``whichrank run`` it tells spans and metrics, and answers requests where they are wanted.
    """
    if not options.requests:
        return AgentSettings(tell_people=True, withheld=options.node_options().withheld)
    return AgentSettings(
        tell_people=True,
        requests_per_minute=REQUESTS_PER_MINUTE,
        history_s=HISTORY_S,
        kernel_log=options.kernel_log,
        withheld=options.node_options().withheld,
    )


def last_alive_ns(path: Path) -> int | None:
    """When (monotonic ns) an agent last touched this file; None: there is none."""
    try:
        age_ns = time.time_ns() - path.stat().st_mtime_ns
    except OSError:
        return None
    return max(time.monotonic_ns() - max(age_ns, 0), 0)


def _asked_to_end() -> threading.Event:
    """Set by SIGTERM and SIGINT. From now on, what parts of whichrank log is for people."""
    logger = logging.getLogger("whichrank")
    logger.addHandler(SayHandler())
    logger.propagate = False
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    return ended


def _look_until(ended: threading.Event, node: NodeAgent, reports: NodeReports, alive: Path) -> None:
    """alive: the file that tells a later agent when this one was last here."""
    said: list[str] = []
    while not ended.wait(_LOOK_S):
        try:
            node.turn()
            reports.turn()
        except Exception as error:  # edge: nothing that lies in a folder may end the service
            logging.getLogger("whichrank").warning("a look at the node: %s: %s", type(error).__name__, error)
        with contextlib.suppress(OSError):  # the spool tells of a folder that cannot be written
            alive.touch()
        if node.jobs != said:
            said = node.jobs
            say(f"jobs here: {', '.join(said) or 'none'}")


def _prepare_process() -> None:
    """Each ring and process that is watched has descriptors; the usual soft limit is for programs that use select.

    What stays is searched for cycles seldom.
    """
    search_seldom()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _own_identity() -> Identity:
    """The node's: whatever job this process itself is of."""
    own = resolve_identity(os.environ, pod_labels=read_pod_labels(os.environ), hostname=socket.gethostname())
    return replace(own, run="", job="", attempt="", world="")


def agent(options: AgentOptions) -> int:
    """Runs ``whichrank agent`` until SIGTERM or SIGINT; the exit status: 0; 2 where it cannot start."""
    capabilities = keep_needed()
    _prepare_process()
    ended = _asked_to_end()
    own, clock = _own_identity(), BrokerClock()
    try:
        if wrong := what_is_wrong_with(options.site_checks):
            raise ValueError(wrong)
        ways, client = _ways_of(options, own.node, clock)
    except (KafkaTrouble, ValueError) as trouble:
        say(str(trouble))
        return EXIT_USAGE
    settings = service_settings(options)
    node = NodeAgent(
        rings=options.rings,
        own=own,
        publish_ranked=ways.publish,
        publish_of=ways.of_owner,
        evidence_directory=options.data / "evidence",
        more_health=lambda: {**ways.stats, **reports.counters, "clock.ahead_ms": clock.wrong_by_ns // 1_000_000},
        wall_ns=clock.now_ns,
        settings=settings,
        missed_since_ns=last_alive_ns(options.data / ALIVE_FILE),
        report=say,
    )
    collectors = options.node_options(versions_file=str(options.data / VERSIONS_FILE))
    telemetry = NodeTelemetry(node_plans(collectors, lambda: node.rank_processes), report=say)
    reports = NodeReports(
        telemetry,
        own,
        ways.publish,
        rank_processes=lambda: node.rank_processes,
        request_bytes=settings.request_bytes,
        withheld=options.node_options().withheld,
    )
    ways.start()
    reports.start()
    requests = None
    if options.requests and client is not None:
        requests = RequestReader(
            partial(client.consumer, committed_only=True),
            own.node,
            node.request,
            lifetime_s=settings.request_lifetime_s,
            wall_ns=clock.now_ns,
        )
        requests.start()
    say(f"agent of node {own.node}: watches {options.rings}, {ways.told_to(options.kafka)}")
    say(f"its capabilities: {', '.join(capabilities) or 'none'}")
    if not can_become_others():
        say(f"no SETUID and SETGID: only the jobs of user {os.geteuid()} can be watched")
    _look_until(ended, node, reports, options.data / ALIVE_FILE)
    if requests is not None:
        requests.close(0.0)
    reports.close()
    node.close(_LAST_WORDS_S)
    say(f"agent ends: {ways.close(_LAST_SENDS_S)}")
    return 0


def _ways_of(options: AgentOptions, node: str, clock: BrokerClock) -> tuple[AgentWays, Client | None]:
    """Where this agent's messages go, and the client for Kafka, where that is one. Raises KafkaTrouble."""
    publisher, client = None, None
    if options.kafka:
        publisher, client = make_publisher(
            options, f"whichrank-agent-{node}", options.data / "spool", options.spool_limit, clock
        )
    use_endpoint(options.otlp, os.environ)
    otlp = OtlpSender(os.environ)
    if otlp.problem:
        say(otlp.problem)
    return AgentWays(publisher, otlp), client
