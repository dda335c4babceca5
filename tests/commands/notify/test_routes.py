"""Who is told: urgency, whose fault it is, routes, owners, shadows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.commands.notify.conftest import page
from whichrank.commands.notify.messages.routes import Routing, Side, Urgency, receivers_of, side_of, urgency_of
from whichrank.commands.settings.notify_options import RouteOptions

BOTH = frozenset({"page", "ticket"})
RECEIVERS = {"oncall": frozenset({"page"}), "ops": BOTH, "alice": BOTH, "nlp": BOTH}
PROGRAM: dict[str, Any] = {"scope": "application", "job": {"id": "7", "name": "gpt", "owner": "alice"}}
CAUSE = {"condition": "x", "entity": "node-1", "device_kind": "gpu", "device": "G", "since": 1.7e9}


def routing(*routes: RouteOptions, **fields: Any) -> Routing:
    known: dict[str, Any] = {
        "severities": RECEIVERS,
        "owners": {"alice": ["alice"], "team-nlp-*": ["nlp"]},
        "operations": ["oncall", "ops"],
    }
    return Routing(**{**known, **({"routes": routes} if routes else {}), **fields})


@pytest.mark.parametrize(
    ("fields", "side"),
    [
        ({"scope": "application"}, Side.APPLICATION),
        ({"scope": "rank", "cause": {**CAUSE, "domain": "application"}}, Side.APPLICATION),
        ({"scope": "rank", "cause": {**CAUSE, "device_kind": "code", "domain": "hardware"}}, Side.APPLICATION),
        ({"scope": "rank", "kind": "rank_raised", "cause": {**CAUSE, "domain": "hardware"}}, Side.OPERATIONS),
        ({"scope": "rank", "kind": "rank_raised"}, Side.APPLICATION),
        ({"scope": "rank", "advice": {"action": "fix_code", "by": "human", "text": ""}}, Side.APPLICATION),
        ({"scope": "rank", "kind": "rank_died"}, Side.OPERATIONS),
        ({"scope": "storage", "kind": "storage_full"}, Side.OPERATIONS),
        ({"scope": None, "advice": None}, Side.OPERATIONS),
    ],
)
def test_whose_fault_it_is(fields: dict[str, Any], side: Side) -> None:
    assert side_of(page(**fields)) is side


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (PROGRAM, ("alice",)),
        ({**PROGRAM, "job": {"owner": "team-nlp-7"}}, ("nlp",)),
        ({**PROGRAM, "job": {"owner": "bob"}}, ("oncall", "ops")),
        ({**PROGRAM, "job": {}}, ("oncall", "ops")),
        ({"scope": "gpu", "job": {"owner": "alice"}}, ("oncall", "ops")),
        ({"scope": "gpu", "severity": "ticket"}, ("ops",)),
        ({"scope": "gpu", "severity": "info"}, ()),
        ({"scope": "cluster", "bucket": "telemetry", "severity": "page"}, ("ops",)),
    ],
)
def test_without_routes_programs_go_to_owners_and_the_rest_to_operations(
    fields: dict[str, Any], told: tuple[str, ...]
) -> None:
    assert receivers_of(page(**fields), routing()) == told


@pytest.mark.parametrize(
    ("route", "fits", "fits_not"),
    [
        ({"scopes": ["gpu", "node"]}, {"scope": "gpu"}, {"scope": "rank"}),
        ({"severities": ["ticket"]}, {"severity": "ticket"}, {"severity": "page"}),
        ({"buckets": ["numeric"]}, {"bucket": "numeric"}, {"bucket": "capacity"}),
        ({"kinds": ["node_lost"]}, {"kind": "node_lost"}, {"kind": "rank_died"}),
        ({"sides": ["application"]}, PROGRAM, {"scope": "gpu"}),
        ({"owners": ["team-*"]}, {"job": {"owner": "team-a"}}, {"job": {"owner": "TEAM-a"}}),
        ({"jobs": ["gpt*"]}, {"job": {"name": "gpt-5", "id": "1"}}, {"job": {"name": "bert", "id": "1"}}),
        ({"jobs": ["47??"]}, {"job": {"name": "x", "id": "4711"}}, {"job": {"name": "x", "id": "471"}}),
        ({"clusters": ["eu-*"]}, {"cluster": "eu-1"}, {"cluster": None}),
    ],
)
def test_a_route_takes_what_fits_all_that_it_says(
    route: dict[str, Any], fits: dict[str, Any], fits_not: dict[str, Any]
) -> None:
    plan = routing(RouteOptions(**route, to=["nlp"]))
    assert receivers_of(page(**fits), plan) == ("nlp",)
    assert receivers_of(page(**fits_not), plan) == ()


def test_the_first_route_that_fits_holds_unless_it_says_also() -> None:
    rest = RouteOptions(to=["operations"])
    assert receivers_of(page(), routing(RouteOptions(to=["nlp"]), rest)) == ("nlp",)
    assert receivers_of(page(), routing(RouteOptions(to=["nlp"], also=True), rest)) == ("nlp", "oncall", "ops")
    assert receivers_of(page(), routing(RouteOptions(to=["ops"], also=True), rest)) == ("ops", "oncall"), "each once"


def test_shadows_get_what_anybody_would_have_got() -> None:
    plan = routing(shadows=("trial",))
    assert receivers_of(page(**PROGRAM), plan) == ("alice", "trial")
    assert receivers_of(page(severity="info"), plan) == ()
    assert receivers_of(page(**PROGRAM), routing(shadows=("trial",), is_trial=True)) == ("trial",)


def test_urgency() -> None:
    assert urgency_of(page()) is Urgency.PAGE
    assert urgency_of(page(severity="ticket")) is Urgency.TICKET
    assert urgency_of(page(severity="info")) is None
    assert urgency_of(page(bucket="telemetry")) is Urgency.TICKET
