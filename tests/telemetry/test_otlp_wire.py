"""The wire format by hand, held against opentelemetry-proto: what is written is what protobuf would have written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from whichrank.telemetry import otlp_wire as wire

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.one_of(st.text(), st.booleans(), INT64, st.floats(allow_nan=False))


def plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


@given(st.text(min_size=1), VALUES)
def test_attributes_are_those_of_protobuf(key: str, value: str | bool | int | float) -> None:
    found = Resource.FromString(wire.attribute(1, key, value)).attributes
    assert [(pair.key, plain(pair.value)) for pair in found] == [(key, value)]
    assert type(plain(found[0].value)) is type(value)
    # Byte for byte: repeats of one thing are the same bytes wherever they were encoded.
    expected = Resource(attributes=[KeyValue(key=key, value=found[0].value)])
    assert wire.attribute(1, key, value) == expected.SerializeToString()


@given(st.integers(0, (1 << 63) - 1))
def test_an_integer_attribute_is_like_any_other(value: int) -> None:
    assert wire.IntAttribute(9, "whichrank.step")(value) == wire.attribute(9, "whichrank.step", value)


@given(st.floats())
def test_a_float_attribute_is_like_any_other(value: float) -> None:
    assert wire.DoubleAttribute(9, "whichrank.step.loss")(value) == wire.attribute(9, "whichrank.step.loss", value)


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_zigzag_numbers(value: int) -> None:
    assert ExponentialHistogramDataPoint.FromString(wire.sint_field(6, value)).scale == value


def test_absent_values_are_left_out() -> None:
    found = Resource.FromString(wire.resource({"a": None, "b": "", "c": 0, "d": False})).attributes
    assert [pair.key for pair in found] == ["c", "d"]


def test_texts_are_encoded_once_and_only_short_ones_are_kept() -> None:
    known = wire.known_text.cache_info
    first = wire.attribute(7, "hw.id", "mlx5_0/1 of a node that no other test has")
    misses = known().misses
    assert wire.attribute(7, "hw.id", "mlx5_0/1 of a node that no other test has") == first
    wire.attribute(7, "hw.id", "x" * 257)
    assert known().misses == misses
    assert wire.attribute(1, "hw.id", "mlx5_0/1 of a node that no other test has") != first


def test_text_that_utf8_cannot_hold_is_replaced() -> None:
    (pair,) = Resource.FromString(wire.attribute(1, "file", "a\udcffb")).attributes
    assert pair.value.string_value == "a?b"


def _span(number: int, size: int) -> bytes:
    return wire.entry(wire.fixed64_field(7, number) + wire.text_field(5, "x" * size))


@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), max_size=60),
    limit=st.integers(100, 2000),
)
def test_requests_keep_everything_within_their_limit(sizes: list[tuple[int, int]], limit: int) -> None:
    builder = wire.RequestBuilder("whichrank", limit)
    resources = [wire.resource({"service.name": f"job-{place}"}) for place in range(4)]
    for number, (place, size) in enumerate(sizes):
        builder.add(resources[place], [_span(number, size)])
    assert len(builder) == len(sizes)
    requests = builder.take()
    assert len(builder) == builder.size_bytes == 0
    assert builder.take() == []
    found: dict[str, list[int]] = {}
    for raw in requests:
        request = ExportTraceServiceRequest.FromString(raw)
        count = 0
        for part in request.resource_spans:
            (name,) = part.resource.attributes
            (scope,) = part.scope_spans
            assert scope.scope.name == "whichrank"
            found.setdefault(name.value.string_value, []).extend(span.start_time_unix_nano for span in scope.spans)
            count += len(scope.spans)
        assert len(raw) <= limit or count == 1
    expected: dict[str, list[int]] = {}
    for number, (place, _) in enumerate(sizes):
        expected.setdefault(f"job-{place}", []).append(number)
    assert found == expected


def test_a_span_larger_than_the_limit_goes_alone() -> None:
    builder = wire.RequestBuilder("whichrank", 200)
    builder.add(b"", [_span(1, 10), _span(2, 5000), _span(3, 10)])
    counts = [
        len(ExportTraceServiceRequest.FromString(raw).resource_spans[0].scope_spans[0].spans) for raw in builder.take()
    ]
    assert counts == [1, 1, 1]


def test_an_entry_is_a_span_of_its_scope() -> None:
    content = wire.text_field(5, "step")
    assert wire.entry(content) == wire.bytes_field(2, content)
    assert Span.FromString(content).name == "step"
