"""The operators of one command: which, in what order, what they read. The same live, in replay and in simulation."""

from __future__ import annotations

from ...processors.cluster.operator import ClusterOperator
from ...processors.entity.operator import EntityOperator
from ...processors.entity.rules import load_rules
from ...processors.job.operator import JobOperator
from ...processors.operator import Operator
from ...telemetry.topics import TOPIC_METRICS
from ...transport.bus import TOPIC_BLOCKS

#: What the operators read of the capture.
INPUT_TOPICS = frozenset({TOPIC_BLOCKS, TOPIC_METRICS})


def make_operators(*, listens: bool = False) -> list[Operator]:
    """The operators in the order in which records flow through them; run and replay use the same.

    listens: silence and ends are told from the records alone, where no command tells them (``whichrank simulate``).
    """
    return [JobOperator(listens=listens), EntityOperator(), ClusterOperator(asks_for_files=True)]


def wanted_metrics() -> frozenset[str]:
    """Names of the metrics that any of the operators reads; the others need not be decoded."""
    return load_rules().wanted
