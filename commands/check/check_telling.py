"""Results of a check to Kafka, where they become conditions of the node; in bounded time, and never at its expense.

What cannot be told is said in one line on stderr; the check's words and exit status stay as they are.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...agents.collectors.base.collector import NodeEvent, Timestamps
from ...agents.collectors.base.node_condition import NodeCondition
from ...agents.collectors.checks.check_results import CheckResult, events_of, source_of
from ...telemetry.identity import read_pod_labels, resolve_identity
from ...telemetry.otlp import encode_batches
from ...telemetry.records import Event, Identity
from ...telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS
from ...telemetry.vocabulary import Action
from ..settings.check_options import CheckOptions
from ..settings.settings_or_exit import settings_or_exit
from ..support.stderr import say
from .acts.act import ActResult, ActState
from .finding import CheckFinding

_REQUEST_BYTES = 600_000
_ACTS, _MOST_ACTS = "check.act", 500


def check_options(kafka: str | None, config: Path | None, pairs: list[str] | None) -> CheckOptions:
    """The settings; what is wrong with them ends the command with status 2."""
    return settings_or_exit(CheckOptions, {"kafka": kafka}, config, pairs)[0]


def results_of(findings: Iterable[CheckFinding]) -> list[CheckResult]:
    """Findings as what becomes a condition."""
    return [
        CheckResult(
            family=each.family.value,
            check=each.check,
            status=each.status,
            reason=each.reason,
            device=each.device,
            remedy=each.remedy,
            domain=each.domain,
            device_kind=each.device_kind,
            action=Action(each.action) if each.action else None,
        )
        for each in findings
    ]


def tell_findings(
    options: CheckOptions, mode: str, findings: Sequence[CheckFinding], acts: Sequence[ActResult] = ()
) -> None:
    """Tells what a check of this node has found, and each act: done, failed, or that it would be done."""
    if not options.kafka:
        return
    looked = {source_of(each.family.value, each.check) for each in findings}
    now = moment()
    events = events_of(results_of(findings), sorted(looked), now, before=mode)
    events += [_act_event(each, mode, now) for each in acts[:_MOST_ACTS] if each.done is not ActState.ALREADY]
    send_told(options, [(own_identity(), each) for each in events])


def _act_event(act: ActResult, mode: str, now: Timestamps) -> NodeEvent:
    """For whoever reads the node's log. It is over at once: an act is no condition."""
    said = f"{mode}: {act.done.value}: {act.text}" + (f": {act.why}" if act.why else "")
    told = NodeCondition(name=f"act_{act.what}", severity="info", domain="service", text=said[:400], is_over=True)
    return told.happening(_ACTS, now)


def own_identity() -> Identity:
    """The node's."""
    found = resolve_identity(os.environ, pod_labels=read_pod_labels(os.environ), hostname=socket.gethostname())
    return Identity(cluster=found.cluster, node=found.node)


def moment() -> Timestamps:
    return Timestamps(wall_ns=time.time_ns(), mono_ns=time.monotonic_ns())


def send_told(options: CheckOptions, told: Sequence[tuple[Identity, NodeEvent]]) -> None:
    """Within the time that is set; a client that hangs is left in its thread, which ends with the process."""
    events = [
        Event(name=each.name, identity=who, time_ns=each.time_ns, mono_ns=each.mono_ns, attributes=each.attributes)
        for who, each in told
    ]
    problem: list[str] = [f"no answer from {options.kafka} within {options.check_tell_s:g} s"]

    def send() -> None:
        problem[0] = _send_now(options, events)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(options.check_tell_s)
    if problem[0]:
        say(f"the results did not reach Kafka: {problem[0]}")


def _send_now(options: CheckOptions, events: Sequence[Event]) -> str:
    """Why it failed; "" it did not."""
    until_s = time.monotonic() + options.check_tell_s
    try:
        from ...transport.kafka import make_client

        settings = options.kafka_settings(client_id="whichrank-check")
        producer = make_client(settings).producer()
        troubles: list[str] = []
        by_node: dict[str, list[Event]] = {}
        for event in events:
            by_node.setdefault(event.identity.node, []).append(event)
        for node, own in by_node.items():
            for topic, is_copy in ((TOPIC_BLOCKS, False), (TOPIC_LOGS, True)):
                for value in encode_batches(own, _REQUEST_BYTES, is_copy=is_copy):
                    producer.send(
                        topic,
                        node.encode(),
                        value,
                        on_done=lambda sent, trouble: troubles.append(str(trouble)) if trouble else None,
                    )
        left = producer.flush(max(until_s - time.monotonic(), 0.1))
        producer.poll()
        if troubles:
            return troubles[0]
        return f"{left} messages had no answer within {options.check_tell_s:g} s" if left else ""
    except Exception as error:  # edge: a client library, and whatever the network does to it
        return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
