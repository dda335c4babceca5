"""Names: conventional where a convention exists, ours otherwise, and translated without loss."""

from __future__ import annotations

import importlib
import pkgutil

from hypothesis import given
from hypothesis import strategies as st

from whichrank.telemetry import attributes as names


def conventional_names() -> set[str]:
    found: set[str] = set()
    for package_name in (
        "opentelemetry.semconv.attributes",
        "opentelemetry.semconv._incubating.attributes",
        "opentelemetry.semconv._incubating.metrics",
    ):
        package = importlib.import_module(package_name)
        for module_info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package_name}.{module_info.name}")
            found |= {value for value in vars(module).values() if isinstance(value, str)}
    return found


def test_conventional_names_exist_in_the_semantic_conventions() -> None:
    published = conventional_names()
    assert len(published) > 500
    assert [name for name in names.CONVENTIONAL if name not in published] == []


def test_every_other_name_is_in_our_own_namespace() -> None:
    constants = {k: v for k, v in vars(names).items() if k.isupper() and isinstance(v, str) and not k.startswith("_")}
    ours = {v for v in constants.values() if v not in names.CONVENTIONAL}
    assert all(v == "whichrank" or v.startswith("whichrank.") for v in ours), ours
    assert len(set(constants.values())) == len(constants), "one name under two constants"


def test_metrics_have_units() -> None:
    metrics = {v for k, v in vars(names).items() if k.startswith("METRIC_") and isinstance(v, str)}
    assert metrics == set(names.METRIC_UNITS)


#: Those that have a name of their own on the wire, and those that would fall on one of these.
SPECIAL_SHORT_NAMES = ["pid", "stack", "phase", "step.phase", "monotonic_ns", "attribute.a", "attribute.attribute.a"]


@given(st.one_of(st.text(), st.sampled_from(SPECIAL_SHORT_NAMES)))
def test_short_names_survive_the_wire(short: str) -> None:
    assert names.short_name(names.wire_name(short)) == short


@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from(SPECIAL_SHORT_NAMES)), unique=True))
def test_two_short_names_never_share_a_wire_name(shorts: list[str]) -> None:
    assert len({names.wire_name(short) for short in shorts}) == len(shorts)


def test_published_names_do_not_change() -> None:
    # Dashboards and alert rules of users depend on these; adding is free, changing is a break.
    assert names.METRIC_UNITS == {
        "process.cpu.time": "s",
        "whichrank.agent.drops": "{record}",
        "whichrank.agent.events.lost": "{event}",
        "whichrank.agent.events.read": "{event}",
        "whichrank.agent.ranks": "{rank}",
        "whichrank.agent.sent": "By",
        "whichrank.agent.spool": "By",
        "whichrank.collective.duration": "s",
        "whichrank.collective.open.age": "s",
        "whichrank.goodput.gpu.time": "s",
        "whichrank.goodput.time": "s",
        "whichrank.heartbeat.age": "s",
        "whichrank.incident.active": "{incident}",
        "whichrank.pipeline.dead_letters": "{record}",
        "whichrank.pipeline.decode.errors": "{record}",
        "whichrank.pipeline.drops": "{record}",
        "whichrank.pipeline.lag": "s",
        "whichrank.pipeline.records.in": "{record}",
        "whichrank.pipeline.records.out": "{record}",
        "whichrank.pipeline.state.rows": "{row}",
        "whichrank.pipeline.timers.late": "s",
        "whichrank.rank.pace": "{step}/s",
        "whichrank.rank.step": "{step}",
        "whichrank.rank.wait": "s",
        "whichrank.step.duration": "s",
        "whichrank.step.phase.duration": "s",
    }


@given(
    st.one_of(st.sampled_from(sorted(names.EVENT_ATTRIBUTE_TYPES)).map(names.wire_name), st.text(max_size=12)),
    st.one_of(st.integers(), st.booleans(), st.floats(), st.text(max_size=3), st.tuples(st.text(max_size=2))),
)
def test_what_is_usable_is_told_by_the_name_on_the_wire_at_once(wire: str, value: object) -> None:
    short = names.short_name(wire)
    assert names.usable_name(wire, value) == (short if names.is_usable(short, value) else None)
