"""Results of a check of pairs to Kafka: of every node that took part, what is wrong with it, or that nothing is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...agents.collectors.checks.check_results import CheckResult, events_of, source_of
from ..check.check_telling import moment, own_identity, send_told
from ..settings.check_options import CheckOptions
from .pair_report import FAMILY, PairFinding


def tell_pairs(options: CheckOptions, findings: Sequence[PairFinding], nodes: Sequence[str]) -> None:
    """Tells of every node that took part what is wrong with it, and of all others that nothing is."""
    if not options.kafka:
        return
    own, now = own_identity(), moment()
    by_node: dict[str, list[CheckResult]] = {node: [] for node in nodes}
    for each in findings:
        for node in each.nodes:
            by_node[node].append(
                CheckResult(
                    family=FAMILY,
                    check=each.check,
                    status=each.status,
                    reason=each.reason,
                    device="" if each.device == node else each.device,
                    remedy=each.remedy,
                )
            )
    told = [
        (replace(own, node=node), event)
        for node, results in by_node.items()
        for event in events_of(results, [source_of(FAMILY)], now)
    ]
    send_told(options, told)
