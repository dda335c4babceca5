"""A page translated at once says what each of its points by itself would."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whichrank.diagnosis.crosswalk.translate import crosswalk
from whichrank.diagnosis.crosswalk.translated_page import PageTranslator
from whichrank.telemetry.point_columns import PointColumns
from whichrank.telemetry.records import Point
from whichrank.telemetry.speaker_series import SeriesShape, SpeakerSeries

RESOURCE = {"service.instance.id": "leaf-1:161", "server.address": "leaf-1"}
SUPPLY = {"ciscoEnvMonSupplyStatusDescr": "PSU 1"}
SERIES: list[tuple[str, Mapping[str, str]]] = [
    *(("ifOperStatus", {"ifName": f"Eth1/{port}"}) for port in range(3)),
    *(("ifHighSpeed", {"ifName": f"Eth1/{port}"}) for port in range(3)),
    ("ciscoEnvMonSupplyState", SUPPLY),  # of no supply: 5, above 6: nothing is known
    ("node_memory_MemAvailable_bytes", {"instance": "node-1:9100"}),
    ("recovery_status", {"target": "lfs-MDT0000"}),
    ("node_network_up", {"device": "docker0", "instance": "node-1:9100"}),  # of nothing
    ("nobody_knows_this", {"ifName": "Eth1/1"}),
]
values = st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0, 7.0, 400_000.0]), min_size=len(SERIES), max_size=len(SERIES))


def order() -> SpeakerSeries:
    names, attributes = tuple(name for name, _ in SERIES), tuple(labels for _, labels in SERIES)
    return SpeakerSeries(SeriesShape(names, attributes, ((),) * len(SERIES)))


def columns(series: SpeakerSeries, told: list[float]) -> PointColumns:
    times = np.arange(len(told), dtype=np.uint64) + 10
    return PointColumns(series, np.array(told), times, times - 5)


def one_by_one(told: list[float], aliases: Mapping[str, str]) -> dict[tuple[str, str], list[Point]]:
    found: dict[tuple[str, str], list[Point]] = {}
    for point in columns(order(), told):
        crossed = crosswalk(
            point.name, point.attributes, RESOURCE, point.value, time_ns=point.time_ns, start_ns=point.start_ns,
            aliases=aliases,
        )  # fmt: skip
        if crossed is not None:
            found.setdefault((crossed.entity_kind.value, crossed.entity_id), []).append(crossed.point)
    return found


@given(st.lists(values, min_size=1, max_size=3), st.booleans())
def test_at_once_and_one_by_one_say_the_same(pages: list[list[float]], is_known: bool) -> None:
    translator, series = PageTranslator(), order()
    aliases = {"node-1": "Node-1.cluster"} if is_known else {}
    for told in pages:
        points = columns(series, told)
        parts = translator.page(series, points, RESOURCE, aliases, 1).of(points)
        assert {(p.kind.value, p.entity): list(p.points) for p in parts} == one_by_one(told, aliases)


def test_entities_that_tell_the_same_share_one_order_and_what_is_missing_has_none() -> None:
    translator, healthy = PageTranslator(), [1.0] * len(SERIES)
    orders = []
    for name in ("leaf-1", "leaf-2"):
        series = order()
        points = columns(series, healthy)
        page = translator.page(series, points, {"server.address": name}, {}, 1)
        orders += [part.order for part in page.of(points) if part.entity == name and part.kind.value == "switch"]
        unknown = columns(series, [7.0 if each[1] is SUPPLY else 1.0 for each in SERIES])
        parts = {part.entity: part for part in page.of(unknown) if part.kind.value == "switch"}
        assert parts[name].order is None
        assert len(parts[name].points) == 6
    assert orders[0] is not None
    assert orders[0] is orders[1]


def test_a_name_that_is_learned_later_counts_from_then_on() -> None:
    translator, series = PageTranslator(), order()
    points = columns(series, [1.0] * len(SERIES))
    entities = [
        {part.entity for part in translator.page(series, points, RESOURCE, aliases, version).of(points)}
        for version, aliases in enumerate(({}, {"node-1": "n1"}))
    ]
    assert "node-1" in entities[0] - entities[1]
    assert "n1" in entities[1] - entities[0]
