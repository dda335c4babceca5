"""A look that is repeated has the bytes that encoding it anew would give."""

from __future__ import annotations

from dataclasses import replace

from whichrank.agents.privacy.redaction_filter import RedactionFilter
from whichrank.simulator.encoded_points import RepeatedGate, RepeatedPoints
from whichrank.telemetry.otlp_metrics import encode_points
from whichrank.telemetry.otlp_redaction import RequestRedactor
from whichrank.telemetry.records import Identity, Point
from whichrank.telemetry.topics import TOPIC_METRICS

WHO = Identity(cluster="simulated", node="node-00003")


def look(time_ns: int, celsius: float) -> list[Point]:
    return [
        Point(name="hw.temperature", value=celsius, attributes={"hw.id": f"GPU-{gpu}"}, time_ns=time_ns)
        for gpu in range(8)
    ]


def test_repeated_looks_are_those_encoded_anew() -> None:
    encode = RepeatedPoints()
    first, second = 1_790_000_000_123_456_789, 1_790_000_010_123_456_790
    for time_ns, celsius in ((first, 60.0), (second, 60.0), (second + 7, 61.0), (second + 9, 61.0)):
        points = look(time_ns, celsius)
        assert encode(WHO, points, limit_bytes=600_000) == encode_points(WHO, points, limit_bytes=600_000)
    assert (encode.encoded, encode.repeated) == (1, 3)


def test_looks_of_different_times_are_requests_of_their_own() -> None:
    encode = RepeatedPoints()
    early, late = look(1_790_000_000_000_000_001, 60.0), look(1_790_000_000_500_000_001, 60.0)
    assert len(encode(WHO, [*early, *late], limit_bytes=600_000)) == 2


def test_a_counter_with_a_time_of_its_own_is_never_repeated_wrongly() -> None:
    encode = RepeatedPoints()
    for time_ns in (1_790_000_000_000_000_001, 1_790_000_005_000_000_001, 1_790_000_005_000_000_009):
        points = [replace(point, name="whichrank.gpu.ecc.errors", start_ns=time_ns) for point in look(time_ns, 1.0)]
        assert encode(WHO, points, limit_bytes=600_000) == encode_points(WHO, points, limit_bytes=600_000)
    for time_ns in (1_790_000_007_000_000_001, 1_790_000_009_000_000_001):
        points = [
            replace(point, name="whichrank.gpu.ecc.errors", start_ns=1_780_000_000_000_000_000 + number)
            for number, point in enumerate(look(time_ns, float(time_ns % 97)))
        ]
        assert encode(WHO, points, limit_bytes=600_000) == encode_points(WHO, points, limit_bytes=600_000)
    assert encode.repeated == 1


def test_several_metrics_of_a_look_keep_their_values() -> None:
    """In a request points stand by metric, whatever their order in the look; integers stand as such."""
    encode = RepeatedPoints()
    for time_ns, more in ((1_790_000_000_000_000_001, 0), (1_790_000_000_500_000_001, 1)):
        points = [
            point
            for number in range(4)
            for point in (
                Point(name="hw.temperature", value=60.5 + number + more, attributes={"n": number}, time_ns=time_ns),
                Point(name="hw.errors", value=7 * number + more, attributes={"n": number}, time_ns=time_ns,
                      start_ns=time_ns - 5 - number),
            )
        ]  # fmt: skip
        assert encode(WHO, points, limit_bytes=600_000) == encode_points(WHO, points, limit_bytes=600_000)
    assert (encode.encoded, encode.repeated) == (1, 1)


def test_what_has_no_secret_once_has_none_with_other_numbers() -> None:
    encode = RepeatedPoints()
    gate, reads = RepeatedGate(encode, RequestRedactor()), RedactionFilter()
    for number in range(3):
        for text in ("GPU-0", "password=hunter22"):
            points = [
                Point(name="hw.temperature", value=60.0 + number, attributes={"hw.id": text}, time_ns=10**18 + number)
            ]
            (value,) = encode(WHO, points, limit_bytes=600_000)
            let_through = gate.message(TOPIC_METRICS, WHO.node, value)
            assert let_through == reads.message(TOPIC_METRICS, WHO.node, value)
            assert let_through is not None
            assert b"hunter22" not in let_through[1]


def test_nodes_read_a_text_that_they_have_in_common_once() -> None:
    requests, nodes = RequestRedactor(), 4
    for node in range(nodes):
        encode = RepeatedPoints()
        who = Identity(cluster="simulated", node=f"node-{node:05d}")
        gate = RepeatedGate(encode, requests)
        for value in encode(who, look(1_790_000_000_123_456_789, 60.0), limit_bytes=600_000):
            assert gate.message(TOPIC_METRICS, who.node, value) == (who.node, value)
        if not node:
            first = requests.texts_read
    names_of_a_node = 4  # the key of the message, and three attributes
    assert requests.texts_read == first + names_of_a_node * (nodes - 1)
