"""What travels between stages is the same after it was packed; shards are the same in every process."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from whichrank.processors.flink.samples_codec import read_samples, write_samples
from whichrank.processors.flink.stage_elements import Element, ElementSort, Stage, StreamPlace, shard_of, unpacked
from whichrank.telemetry.records import Identity, Point, Samples


@given(some.binary(), some.text(), some.integers(0, 1 << 62), some.dictionaries(some.text(), some.text(), max_size=3))
def test_an_element_is_read_as_it_was_written(value: bytes, key: str, stamp_ns: int, claims: dict[str, str]) -> None:
    place = StreamPlace(stamp_ns, 2, "topic", 3, 4, "jobs/1", 5)
    carried = ElementSort.CARRIED
    element = Element(
        stage=Stage.JOBS, shard="7", sort=carried, place=place, topic="t", key=key, value=value, claims=claims
    )
    assert unpacked(Stage.JOBS, "7", element.packed()) == element


def test_samples_are_read_as_they_were_written() -> None:
    samples = Samples(
        identity=Identity(cluster="c", node="n"),
        entity="switch",
        resource={"service.name": "x"},
        points=(Point(name="m", value=1.5, attributes={"gpu": 3, "port": "p"}, time_ns=7, start_ns=2),),
    )
    assert read_samples(write_samples(samples)) == samples


def test_a_name_has_the_same_shard_for_ever() -> None:
    """State lies under it: another hash would lose all of it at an upgrade."""
    assert [shard_of(name, 128) for name in ("4711", "job-a", "")] == ["119", "75", "0"]
