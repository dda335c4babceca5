"""Faults of those who look: agents, brokers, clocks. One telemetry incident, and nobody's fault. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ....telemetry.incident_document import EvidenceRow
from ....telemetry.incident_writing import write_evidence
from ....telemetry.records import Finding, Identity
from ....telemetry.vocabulary import Bucket, Kind, Scope, Severity
from .history import Verdict
from .rules import the_rule
from .troubles import Trouble

#: What falls silent for one reason does so within this time.
TOGETHER_S = 60.0
#: Times of a node whose clock was stepped are doubtful so long around it.
CLOCK_DOUBT_S = 600.0
CLOCK_CONFIDENCE = 0.8


def blind_spots(troubles: Sequence[Trouble]) -> Iterator[Verdict]:
    """A verdict for each set of two or more telemetry troubles within TOGETHER_S: they are one.
    troubles: of telemetry.
    """
    rule = the_rule("observer")
    left = sorted(troubles, key=lambda t: (t.onset, t.id))
    while left:
        first = left[0]
        together = [t for t in left if t.onset <= first.onset + TOGETHER_S]
        left = left[len(together) :]
        if len(together) < 2:
            continue
        nodes = sorted({node for t in together for node in t.nodes})
        jobs = {t.job for t in together}
        what = f"node {nodes[0]}" if len(nodes) == 1 else f"{len(nodes)} nodes" if nodes else f"{len(jobs)} jobs"
        yield Verdict(
            rule=rule,
            value=what,
            probability=0.9,
            members=[t.id for t in together],
            onset=first.onset,
            words={"what": what, "jobs": len(jobs)},
            evidence=[
                EvidenceRow(
                    signal=f"telemetry.{t.kind}",
                    source=f"job {t.job}",
                    time_s=t.onset,
                    value=t.kind,
                    shows=f"of job {t.job} nothing is seen" + (f" on {', '.join(t.nodes)}" if t.nodes else ""),
                )
                for t in together[:8]
            ],
        )


def clock_note(trouble: Trouble, steps: Mapping[str, tuple[float, str]]) -> EvidenceRow | None:
    """A row on why the order of events in the trouble is doubtful: a clock was stepped near its onset; None: it is not.

    steps: by node, when its clock was stepped (Unix seconds) and by how much, in words.
    """
    for node in trouble.nodes:
        step = steps.get(node)
        if step is not None and abs(step[0] - trouble.onset) <= CLOCK_DOUBT_S:
            return EvidenceRow(
                signal="change.clock",
                source=node,
                time_s=step[0],
                value=step[1],
                shows=f"the clock of {node} {step[1]}: which of the nodes' events came first is doubtful",
            )
    return None


def clock_findings(finding: Finding) -> Iterator[Finding]:
    """A telemetry finding that is over at once, for a finding that a node's clock was stepped; for others nothing."""
    change = finding.body.get("change")
    if not isinstance(change, Mapping) or change.get("what") != "clock":
        return
    node, time = str(change.get("entity") or ""), float(change.get("time") or finding.time_ns / 1e9)
    row = EvidenceRow(
        signal="change.clock",
        source=node,
        time_s=time,
        value=str(change.get("new") or ""),
        shows=f"the clock of {node} {change.get('new')}: times of its events before and after do not compare",
    )
    body = {
        "bucket": Bucket.TELEMETRY.value,
        "kind": Kind.TELEMETRY_FAULT.value,
        "scope": Scope.NODE.value,
        "severity": Severity.INFO.value,
        "suspects": [],
        "victims": {"count": 0, "ranks": ""},
        "times": {"onset": time, "detected": finding.time_ns / 1e9, "attributed": finding.time_ns / 1e9},
        "evidence": [write_evidence(row)],
        "ruled_out": [],
        "confidence": 0.9,
    }
    who = Identity(cluster=finding.identity.cluster)
    for cleared in (False, True):
        key = f"clock/{node}/{time:.3f}"
        yield Finding(identity=who, key=key, cleared=cleared, time_ns=finding.time_ns, body=body)
