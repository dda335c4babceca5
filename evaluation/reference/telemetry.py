"""Sections of the reference about telemetry: metrics, spans, events, topics, and the closed sets of words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ScopeLogs
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from ...commands.notify.notify_health import NotifyFigures, NotifyHealth, ReceiverHealth
from ...commands.respond.respond_health import RespondFigures, RespondHealth
from ...commands.support.health_server import ServiceFigures
from ...grafana.elements.metric_names import prometheus_name
from ...processors.runner_service import Role, ServiceHealth
from ...telemetry import attributes as names
from ...telemetry.evidence_pieces import EvidencePiece, encode_evidence
from ...telemetry.incident_events import incident_event
from ...telemetry.incident_writing import write_incident
from ...telemetry.metric_encode import METRICS
from ...telemetry.node_metrics import node_metrics
from ...telemetry.records import Event, Identity
from ...telemetry.response_events import response_event
from ...telemetry.tables import TABLES
from ...telemetry.vocabulary import EventName, Kind
from ...transport.kafka_topics import DAY_MS, HOUR_MS, TOPICS, TopicPlan
from . import words
from .example_documents import whole_incident, whole_response
from .markdown import code, codes, section, table
from .span_kinds import attributes_of, span_kinds

#: In the docstring of ``records.Event``: a name of an event, and behind it its attributes.
_EVENT_LINE = re.compile(r"^ {6}([A-Z][A-Z_]+) +(.*)$")
_MORE_OF_IT = re.compile(r"^ {8,}(\S.*)$")
#: An attribute there: its short name, ``*`` if it must be there, a note, and what the event itself means.
_ATTRIBUTE = re.compile(r"([a-z_]+)(\*?)(?: (\(.*\)))?(?:: .*)?")
#: Behind an attribute that must be there; without the stroke two of them would be Markdown's emphasis.
_MUST = "\\*"
#: Of kinds of incidents: what each is called, in its runbook's first line.
RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"


def metrics() -> str:
    """The section of all metrics, of agents, processors and services."""
    rows = [
        (code(name), names.METRIC_UNITS[name], each.instrument.value, codes(each.attributes), each.description)
        for name, each in METRICS.items()
    ]
    heads = ("Metric", "Unit", "Instrument", "Attributes", "What it is")
    node_rows = [
        (code(name), each.unit, each.instrument.value, codes(each.attributes), each.description)
        for name, each in sorted(node_metrics().items())
    ]
    spelled = [(code(name), code(prometheus_name(name))) for name in (*METRICS, *sorted(node_metrics()))]
    own = [
        (code(served_name(family)), family.type, codes(_labels(family)), family.documentation)
        for family in own_families()
    ]
    return "\n\n".join(
        (
            section("Metrics of jobs and of whichrank", "Topic `otlp_metrics`.", table(heads, rows)),
            section(
                "Metrics of nodes",
                "What collectors measure; each point has `whichrank.node.id` as well. Topic `otlp_metrics`.",
                table(heads, node_rows),
            ),
            section(
                "Metrics that services serve themselves",
                "`/metrics` of `whichrank process`, `whichrank notify` and `whichrank respond`.",
                table(("Metric", "Kind", "Labels", "What it is"), own),
            ),
            section(
                "Names in Prometheus",
                "As its OTLP receiver writes them; of a histogram `_count`, `_sum` and so on come behind. Dots of "
                "attributes become underscores.",
                table(("Metric", "In Prometheus"), spelled),
            ),
        )
    )


def own_families() -> Iterator[Family]:
    """The metrics that services tell of themselves on their own endpoints, as they would with one of everything."""
    service = ServiceHealth(
        role=Role.LEADER,
        caught_up=True,
        lag_s=0.0,
        trouble=None,
        idle_s=0.0,
        messages=0,
        records=0,
        unreadable=0,
        nameless=0,
        published=0,
        outbox=0,
        missed=0,
        too_large=0,
        failed_commits=0,
        rows=0,
        timers=0,
        timers_late_s=0.0,
    )
    receiver = ReceiverHealth(counts={"told": 0}, waiting=0, trouble=None, failing_s=0.0, last_delay_s=0.0)
    notify = NotifyHealth(
        turned_s=0.0,
        caught_up=True,
        trouble=None,
        unreadable=0,
        passed_over={"old": 0},
        receivers={"receiver": receiver},
    )
    respond = RespondHealth(
        mode="dry",
        turned_s=0.0,
        caught_up=True,
        trouble=None,
        breaker=None,
        nodes_out=0,
        waiting=0,
        events_dropped=0,
        unreadable=0,
        outcomes={("would", "slurm", "drain_node"): 0},
        refusals={"scope": 0},
    )
    collectors: tuple[Collector, ...] = (
        ServiceFigures(lambda: service),
        NotifyFigures(lambda: notify),
        RespondFigures(lambda: respond),
    )
    for collector in collectors:
        yield from collector.collect()


def served_name(family: Family) -> str:
    """The name of a metric as Prometheus serves it: counters end in _total."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def spans() -> str:
    """The sections of spans and of what their attributes say."""
    rows = [(kind.name, _span_attributes(kind.attributes), codes(kind.events), kind.what) for kind in span_kinds()]
    meaning = [(code(name), text) for name, text in words.ATTRIBUTES.items()]
    return "\n\n".join(
        (
            section("Spans", "Topic `otlp_spans`.", table(("Span", "Attributes", "Events within", "What it is"), rows)),
            section(
                "Attributes", "Of spans, metrics and incident events.", table(("Attribute", "What it says"), meaning)
            ),
        )
    )


def seconds_of_phase(name: str) -> str:
    """``whichrank.step.seconds.PHASE`` for each of those; other names as they are."""
    return f"{names.STEP_SECONDS}PHASE" if name.startswith(names.STEP_SECONDS) else name


def _span_attributes(found: Iterable[tuple[str, str]]) -> str:
    merged = dict.fromkeys((seconds_of_phase(name), kind) for name, kind in found)
    return ", ".join(f"{code(name)} {kind}" for name, kind in merged)


def events() -> str:
    """The section of events with their attributes, from events that were made for it."""
    rows = [(_event_name(name), _event_content(name), words.EVENTS[name]) for name in EventName]
    return section(
        "Events",
        "`event_name` of OTLP log records. Attributes that must be there are marked \\*. Blocks are packed tables; "
        "their columns stand in place of attributes.",
        table(("Event", "Attributes", "What happened"), rows),
    )


def event_attributes() -> Mapping[EventName, str]:
    """The attributes of each event as ``records.Event`` lists them, with short names; others from ``words``."""
    found: dict[str, str] = {}
    name = ""
    for line in (Event.__doc__ or "").splitlines():
        if begin := _EVENT_LINE.match(line):
            name, found[begin[1]] = begin[1], begin[2]
        elif name and (more := _MORE_OF_IT.match(line)):
            found[name] += f" {more[1]}"
        else:
            name = ""
    listed = {EventName[name]: text for name, text in found.items() if name in EventName.__members__}
    whole = {**listed, **words.EVENT_ATTRIBUTES}
    return whole | {name: f"{whole[name]}, {more}" for name, more in words.MORE_EVENT_ATTRIBUTES.items()}


def split_attributes(text: str) -> Iterator[str]:
    """The parts of a text between commas and semicolons that stand outside of parentheses."""
    depth, part = 0, ""
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter in ",;":
            yield part.strip()
            part = ""
        else:
            part += letter
    if part.strip():
        yield part.strip()


def _event_name(name: EventName) -> str:
    behind = {EventName.INCIDENT: ".CHANGE", EventName.RESPONSE: ".OUTCOME"}.get(name, "")
    return code(name.value + behind)


def _event_content(name: EventName) -> str:
    if name in TABLES:
        return "columns " + codes(TABLES[name].names or ())
    if name in (EventName.INCIDENT, EventName.RESPONSE):
        made = (
            incident_event(write_incident(whole_incident()))
            if name is EventName.INCIDENT
            else response_event(whole_response().written())
        )
        (record,) = ScopeLogs.FromString(made).log_records
        return _span_attributes(attributes_of(record.attributes))
    if name is EventName.EVIDENCE:
        return _span_attributes(attributes_of(_evidence_record().attributes))
    if name is EventName.FINDING:
        return codes((names.FINDING_KEY, names.FINDING_CLEARED, names.INCIDENT_KIND))
    return ", ".join(_wire_words(part) for part in split_attributes(event_attributes().get(name, "")))


def _evidence_record() -> LogRecord:
    who = Identity(job="job", node="node", rank=3)
    piece = EvidencePiece(
        identity=who, request_id="id", action="ring", name="file", format="text", time_ns=1, content=b"", incident="id"
    )
    request = ExportLogsServiceRequest.FromString(encode_evidence(piece))
    return request.resource_logs[0].scope_logs[0].log_records[0]


def _wire_words(part: str) -> str:
    match = _ATTRIBUTE.fullmatch(part)
    if match is None:
        return part
    must, note = _MUST if match[2] else "", f" {match[3]}" if match[3] else ""
    return f"{code(names.wire_name(match[1]))}{must}{note}"


def topics() -> str:
    """The section of Kafka's topics: keys, retention, who writes and who reads."""
    rows = [
        (
            code(plan.name),
            str(plan.partitions) if plan.partitions else "`kafka_partitions`",
            _retention(plan),
            "the broker's" if plan.is_input else "any",
            words.TOPICS[plan.name],
        )
        for plan in TOPICS
    ]
    return section(
        "Topics",
        "`whichrank topics` makes them; `kafka_topic_prefix` stands before each name.",
        table(("Topic", "Partitions", "Kept for", "Stamps", "What lies there"), rows),
    )


def _retention(plan: TopicPlan) -> str:
    if not plan.retention_ms:
        return "good, the newest of each key"
    if plan.retention_ms % DAY_MS == 0:
        return f"{plan.retention_ms // DAY_MS} d"
    return f"{plan.retention_ms // HOUR_MS} h"


def closed_sets() -> str:
    """The section of words that fields and attributes may hold."""
    kinds = [(f"[`{kind.value}`](runbooks/{kind.value}.md)", kind_words(kind)) for kind in Kind]
    sets = [
        section(heading, table(("Word", "Meaning"), [(code(word.value), text) for word, text in found.items()]))
        for heading, found in words.SETS.items()
    ]
    times = [(code(bucket.value), text) for bucket, text in words.TIME_BUCKETS.items()]
    phases = [(code(phase.name.lower()), text) for phase, text in words.PHASES.items()]
    return "\n\n".join(
        (
            section(
                "Kinds of incidents",
                "Each leads to its runbook; what must be true for one is in [verdicts](verdicts.md).",
                table(("Kind", "What happened"), kinds),
            ),
            *sets,
            section(
                "Buckets of time",
                "[Accounting](accounting.md) says how they are told apart.",
                table(("Word", "Meaning"), times),
            ),
            section("Phases", table(("Word", "Meaning"), phases)),
        )
    )


def kind_words(kind: Kind) -> str:
    """What happened in an incident of this kind: the first line of its runbook."""
    return (RUNBOOKS / f"{kind.value}.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def _labels(family: Family) -> Iterable[str]:
    return dict.fromkeys(name for sample in family.samples for name in sample.labels)
