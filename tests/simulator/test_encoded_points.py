"""A look that is repeated has the bytes that encoding it anew would give."""

from __future__ import annotations

from dataclasses import replace

from whichrank.simulator.encoded_points import RepeatedPoints
from whichrank.telemetry.otlp_metrics import encode_points
from whichrank.telemetry.records import Identity, Point

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
    assert (encode.encoded, encode.repeated) == (2, 2)


def test_looks_of_different_times_are_requests_of_their_own() -> None:
    encode = RepeatedPoints()
    early, late = look(1_790_000_000_000_000_001, 60.0), look(1_790_000_000_500_000_001, 60.0)
    assert len(encode(WHO, [*early, *late], limit_bytes=600_000)) == 2


def test_a_counter_with_a_time_of_its_own_is_never_repeated_wrongly() -> None:
    encode = RepeatedPoints()
    for time_ns in (1_790_000_000_000_000_001, 1_790_000_005_000_000_001):
        points = [replace(point, name="whichrank.gpu.ecc.errors", start_ns=time_ns) for point in look(time_ns, 1.0)]
        assert encode(WHO, points, limit_bytes=600_000) == encode_points(WHO, points, limit_bytes=600_000)
    assert encode.repeated == 0
