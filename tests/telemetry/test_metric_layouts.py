"""Messages of a known layout: read by place, they say what decoding them in full says."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from whichrank.telemetry.metric_layouts import MOST_ALIKE, Layouts
from whichrank.telemetry.otlp_metrics import decode_metrics
from whichrank.telemetry.records import Broken, Samples

WANTED = frozenset({"gauge", "sum"})


def is_wanted(name: str) -> bool:
    return name in WANTED


def message(numbers: Sequence[float], *, node: str = "n1", state: str = "ok", buckets: int = 1) -> bytes:
    """Points of two nodes: gauges as doubles, a sum as whole numbers with a start, and what nobody wants."""
    request = ExportMetricsServiceRequest()
    for name in (node, "n2"):
        part = request.resource_metrics.add()
        part.resource.attributes.add(key="host.name").value.string_value = name
        metrics = part.scope_metrics.add().metrics
        gauges, sums = metrics.add(name="gauge").gauge.data_points, metrics.add(name="sum").sum.data_points
        for place, number in enumerate(numbers):
            point = gauges.add(time_unix_nano=1000 + int(abs(number)), as_double=number)
            point.attributes.add(key="state").value.string_value = f"{state} {place}"
            sums.add(time_unix_nano=(1 << 64) - 1 - place, start_time_unix_nano=7 + place, as_int=int(number))
        metrics.add(name="histogram").histogram.data_points.add(count=buckets, bucket_counts=[buckets])
        metrics.add(name="else").gauge.data_points.add(as_double=number)
    return request.SerializeToString()


def counted(layouts: Layouts, value: bytes) -> tuple[Sequence[Samples | Broken], bool]:
    """What is decoded, and whether it was of a known layout."""
    is_known = layouts.read(value) is not None
    return decode_metrics("t", value, is_wanted, layouts), is_known


numbers = st.lists(st.floats(-(2.0**62), 2.0**62), min_size=1, max_size=4)


@given(first=numbers, second=numbers)
def test_by_place_and_in_full_say_the_same(first: list[float], second: list[float]) -> None:
    layouts = Layouts(is_wanted)
    for values in (first, second, first):
        value = message(values)
        assert decode_metrics("t", value, is_wanted, layouts) == decode_metrics("t", value, is_wanted)


def test_other_numbers_are_of_a_known_layout_and_other_words_are_not() -> None:
    layouts = Layouts(is_wanted)
    (one, _), is_known = counted(layouts, message([1.0, 2.0]))
    assert not is_known
    (again, other), is_known = counted(layouts, message([3.0, -4.0], buckets=2))
    assert is_known, "what nobody wants may differ in anything but its length"
    assert isinstance(one, Samples)
    assert isinstance(again, Samples)
    assert isinstance(other, Samples)
    assert [point.value for point in again.points] == [3.0, -4.0, 3.0, -4.0]
    assert one.order is again.order
    assert other.order is not again.order
    (failed, _), is_known = counted(layouts, message([3.0, -4.0], state="failed"))
    assert not is_known
    assert isinstance(failed, Samples)
    assert failed.points[0].attributes == {"state": "failed 0"}


def test_another_node_speaks_as_the_first_did_with_words_of_its_own() -> None:
    layouts = Layouts(is_wanted)
    (one, _), _ = counted(layouts, message([1.0, 2.0]))
    (three, _), is_known = counted(layouts, message([3.0, 4.0], node="n3", state="no"))
    assert is_known
    assert layouts.learned == 1
    assert isinstance(one, Samples)
    assert isinstance(three, Samples)
    assert (three.identity.node, three.points[0].attributes) == ("n3", {"state": "no 0"})
    assert three.resource == {"host.name": "n3"}
    assert three.order is not one.order
    (again, _), _ = counted(layouts, message([3.0, 4.0], node="n3", state="no"))
    assert isinstance(again, Samples)
    assert again.order is three.order


@given(
    numbers,
    st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), min_size=1, max_size=6),
)
def test_words_of_any_node_are_read_as_in_full(values: list[float], words: list[tuple[str, str]]) -> None:
    layouts = Layouts(is_wanted)
    for node, state in words:
        value = message(values, node=node, state=state)
        found, full = decode_metrics("t", value, is_wanted, layouts), decode_metrics("t", value, is_wanted)
        assert found == full
        assert _names(found) == _names(full)


def test_texts_that_are_equal_of_one_node_may_differ_of_another() -> None:
    """And all the same no layout is learned anew."""
    layouts = Layouts(is_wanted)
    value = message([1.0, 2.0])
    assert b"ok 1" in value
    for number in range(3 * MOST_ALIKE):
        told = value.replace(b"ok 0", b"%4d" % (number // 2)).replace(b"ok 1", b"%4d" % ((number + 1) // 2))
        assert decode_metrics("t", told, is_wanted, layouts) == decode_metrics("t", told, is_wanted)
        both = value.replace(b"n1", b"%02d" % number).replace(b"ok 0", b"%4d" % number, number % 2 + 1)
        assert decode_metrics("t", both, is_wanted, layouts) == decode_metrics("t", both, is_wanted)
    assert layouts.learned == 1


def test_a_message_of_nothing_that_is_wanted_says_nothing() -> None:
    layouts = Layouts(lambda _: False)
    for value in (b"", message([1.0]), message([2.0])):
        assert decode_metrics("t", value, lambda _: False, layouts) == []


def _names(found: Sequence[Samples | Broken]) -> list[list[str]]:
    """Of attributes, in the order in which points have them."""
    return [list(p.attributes) for each in found if isinstance(each, Samples) for p in each.points]


def test_another_name_of_an_attribute_is_another_layout() -> None:
    layouts = Layouts(is_wanted)
    value = message([1.0])
    decode_metrics("t", value, is_wanted, layouts)
    renamed = value.replace(b"state", b"stage")
    assert layouts.read(renamed) is None
    assert decode_metrics("t", renamed, is_wanted, layouts) == decode_metrics("t", renamed, is_wanted)
    no_text = value.replace(b"ok 0", b"ok \xff")
    assert layouts.read(no_text) is None
    assert isinstance(decode_metrics("t", no_text, is_wanted, layouts)[0], Broken)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_points_without_a_number_are_left_out_all_the_same(number: float) -> None:
    layouts = Layouts(is_wanted)
    decode_metrics("t", message([1.0, 2.0]), is_wanted, layouts)
    request = ExportMetricsServiceRequest.FromString(message([1.0, 2.0]))
    request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[1].as_double = number
    found, is_known = counted(layouts, request.SerializeToString())
    assert not is_known
    assert isinstance(found[0], Samples)
    assert [point.value for point in found[0].points] == [1.0, 1.0, 2.0]


def test_no_more_speakers_and_layouts_are_kept_than_asked() -> None:
    layouts = Layouts(is_wanted, most=2)
    orders = {}
    for node in ("a", "b", "a", "c"):
        orders[node] = _order(layouts, message([1.0], node=node))
    assert [_order(layouts, message([2.0], node=node)) is orders[node] for node in "acb"] == [True, True, False]
    for number in range(MOST_ALIKE + 1):
        decode_metrics("t", message([1.0]).replace(b"state", b"stat%d" % number), is_wanted, layouts)
    assert layouts.read(message([2.0])) is None


def _order(layouts: Layouts, value: bytes) -> object:
    first = decode_metrics("t", value, is_wanted, layouts)[0]
    assert isinstance(first, Samples)
    return first.order


def test_damage_is_read_as_without_layouts() -> None:
    """But for damage to what nobody wants, at which nobody looks."""
    draw = random.Random(5)
    layouts = Layouts(is_wanted)
    whole = message([1.0, 2.0, 3.0])
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(draw.randrange(4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        found = decode_metrics("t", bytes(damaged), is_wanted, layouts)
        in_full = decode_metrics("t", bytes(damaged), is_wanted)
        if not any(isinstance(each, Broken) for each in in_full):
            assert _comparable(found) == _comparable(in_full)


def _comparable(found: Sequence[Samples | Broken]) -> list[str]:
    """As text, since no number equals one that is none."""
    return [repr(each) if isinstance(each, Broken) else repr((each.identity, tuple(each.points))) for each in found]
