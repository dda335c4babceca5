"""One page per cause at every kind of receiver: revisions, merges, holds, kills, lost answers, receivers away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.commands.notify.conftest import NOW, Room, merged, page, resolved, suspect
from tests.commands.notify.parts import (
    DROP,
    SLOW,
    AlertmanagerApi,
    Api,
    PagerDutyApi,
    SlackApi,
    Status,
    WebhookApi,
)
from whichrank.commands.incident_feeds.feed_position import FeedPosition
from whichrank.commands.incident_service.inbox import HOUR_S
from whichrank.commands.notify.delivery_planner import LONGEST_HOLD_S

ONE = f"{1:016x}"


def test_a_revised_suspect_is_no_second_page(room: Room, api: Api) -> None:
    room.tell(page())
    for revision in range(2, 6):
        room.tell(page(1, revision, suspects=suspect(f"node-{revision}"), kind="rank_died", bucket="immediate_crash"))
    assert (api.pages, api.wrong) == ([ONE], [])


def test_the_change_of_a_suspect_is_told(room_of: Callable[..., Room]) -> None:
    slack, pagerduty = SlackApi(), PagerDutyApi()
    room = room_of({"slack": slack, "pagerduty": pagerduty})
    room.tell(page())
    room.tell(page(1, 2, suspects=suspect("node-77")))
    assert "node-77" in slack.roots[0]["text"]
    assert len(slack.replies) == 1
    assert "node-77" in slack.replies[0]["text"]
    assert "node-77" in pagerduty.summaries[ONE][-1]


def test_what_says_nothing_new_is_not_told_again(room: Room, api: Api) -> None:
    room.tell(page())
    room.tell(page(1, 2, cost={"gpu_seconds": 4711.0}))
    room.tell(page(1, 1))  # a processor begins anew
    assert len(api.requests) == 1


def test_a_killed_service_goes_on_where_it_was(room: Room, api: Api) -> None:
    room.tell(page())
    room.again()
    room.tell(page(2))
    room.again()
    room.tell(page(), page(2))
    assert api.pages == [ONE, f"{2:016x}"]


@pytest.mark.parametrize("way", [DROP, SLOW])
def test_an_answer_that_is_lost_makes_no_second_page(room: Room, api: Api, way: str) -> None:
    api.answers = [way]
    room.tell(page())
    room.tell(page(2))
    room.tell()
    assert (api.pages, api.wrong) == ([ONE, f"{2:016x}"], [])


def test_killed_between_sending_and_writing_down(room: Room, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*words: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(room.store), "end", die)
        with pytest.raises(KeyboardInterrupt):
            room.tell(page())
    assert len(api.pages) == 1
    room.again()
    room.tell()
    room.tell(page(1, 2, suspects=suspect("node-5")))
    assert (api.pages, api.wrong) == ([ONE], [])


@pytest.mark.parametrize("code", [429, 500, 503, 408, 401])
def test_what_is_not_taken_is_told_later(room: Room, api: Api, code: int) -> None:
    api.answers = [Status(code=code)] * 3
    room.tell(page())
    assert api.pages == []
    for _ in range(30):
        room.tell(after_s=15.0)
    assert api.pages == [ONE]


def test_retry_after_is_honoured(room: Room, api: Api) -> None:
    api.answers = [Status(code=429, headers={"Retry-After": "90"})]
    room.tell(page(), page(2))
    assert len(api.requests) == 1
    room.tell(after_s=70.0)
    assert len(api.requests) == 1, "nothing at all is sent there before"
    room.tell(after_s=30.0)
    assert len(api.pages) == 2


def test_a_receiver_that_is_away_is_told_when_it_is_back(room_of: Callable[..., Room], kind: str, api: Api) -> None:
    others: dict[str, Api] = {"webhook": WebhookApi()} if kind != "webhook" else {"slack": SlackApi()}
    (other,) = others.values()
    room = room_of({kind: api, **others})
    api.close()
    room.tell(page())
    assert other.pages == [ONE], "nobody else waits for it"
    back = type(api)(api.port)
    back.clock = api.clock
    for _ in range(10):
        room.tell(after_s=60.0)
    assert back.pages == [ONE]
    back.close()
    other.close()


def test_what_is_refused_is_not_tried_again_until_it_changes(room: Room, api: Api) -> None:
    refusal = Status(code=400)
    api.answers = [refusal]
    room.tell(page())
    for _ in range(5):
        room.tell(after_s=600.0)
    assert len(api.requests) == 1
    room.tell(page(1, 2, suspects=suspect("node-5")))
    assert api.pages == [ONE]


def test_on_hold_nobody_is_paged_until_it_is_released(room: Room, api: Api) -> None:
    held = {"hold": {"until": NOW + 20.0, "because": "others fail, too"}}
    room.tell(page(1, 1, **held), after_s=5.0)
    assert api.pages == []
    room.tell(page(1, 2), after_s=0.0)
    assert api.pages == [ONE]


def test_a_hold_ends_at_its_time(room: Room, api: Api) -> None:
    room.tell(page(hold={"until": NOW + 20.0, "because": "others fail, too"}), after_s=19.0)
    assert api.pages == []
    room.tell(after_s=2.0)
    assert api.pages == [ONE]


@pytest.mark.parametrize("until", [None, NOW + 1e9])
def test_a_hold_without_an_end_is_none(room: Room, api: Api, until: float | None) -> None:
    room.tell(page(hold={"until": until, "because": "?"}), after_s=LONGEST_HOLD_S - 1.0)
    assert api.pages == []
    room.tell(after_s=2.0)
    assert api.pages == [ONE]


def test_what_merges_while_on_hold_pages_nobody(room: Room, api: Api) -> None:
    room.tell(page())
    room.tell(page(2, hold={"until": NOW + 30.0, "because": "others fail, too"}), after_s=3.0)
    room.tell(merged(2, 2, into=1), page(1, 2, suspects=suspect("node-9")))
    room.tell(after_s=100.0)
    assert api.pages == [ONE]


def test_where_only_the_merged_one_was_told_it_goes_on_as_the_leader(room: Room, api: Api) -> None:
    """The leader was held back when the other one was paged: one page, and it is not over with the merge."""
    room.tell(page(1, hold={"until": NOW + 90.0, "because": "others fail, too"}), after_s=1.0)
    room.tell(page(2), after_s=1.0)
    assert api.pages == [f"{2:016x}"]
    room.tell(merged(2, 2, into=1), page(1, 2, kind="switch_fault", scope="switch"))
    room.tell(page(1, 3, suspects=suspect("node-9")))
    assert api.pages == [f"{2:016x}"]
    if isinstance(api, PagerDutyApi):
        assert api.alerts == {f"{2:016x}": "triggered"}
    room.tell(resolved(1))
    if isinstance(api, PagerDutyApi):
        assert api.alerts == {f"{2:016x}": "resolved"}
    if isinstance(api, AlertmanagerApi):
        assert {a["annotations"]["standing"] for a in api.alerts.values()} == {"closed"}


def test_a_merge_that_comes_while_the_page_is_on_its_way(room: Room, api: Api) -> None:
    api.answers = [DROP]
    room.tell(page(2), after_s=0.0)
    room.tell(page(1, hold={"until": NOW + 90.0, "because": "others fail, too"}), after_s=0.0)
    room.tell(merged(2, 2, into=1), page(1, 2))
    room.tell()
    assert api.pages == [f"{2:016x}"]


def test_where_both_were_told_the_merged_one_is_closed_with_a_link(room_of: Callable[..., Room]) -> None:
    slack, pagerduty, webhook = SlackApi(), PagerDutyApi(), WebhookApi()
    room = room_of({"slack": slack, "pagerduty": pagerduty, "webhook": webhook})
    room.tell(page(1), page(2))
    room.tell(merged(2, 2, into=1))
    assert pagerduty.alerts == {ONE: "triggered", f"{2:016x}": "resolved"}
    assert [m["text"] for m in slack.roots if f"merged into {ONE}" in m["text"]]
    assert webhook.told[-1]["merged_into"] == ONE
    assert [len(api.pages) for api in (slack, pagerduty, webhook)] == [2, 2, 2]


def test_what_is_over_before_it_could_be_told_is_not_told(room: Room, api: Api) -> None:
    room.take(page())
    room.take(resolved())
    room.tell()
    assert api.requests == []


def test_over_and_back_again(room: Room, api: Api) -> None:
    room.tell(page())
    room.tell(resolved())
    room.tell(page(1, 10, change="reopened"))
    assert len(api.pages) == (1 if isinstance(api, SlackApi) else 2)
    if isinstance(api, SlackApi):
        assert api.replies[-1]["reply_broadcast"] is True


def test_a_label_of_a_person_acknowledges(room_of: Callable[..., Room]) -> None:
    pagerduty = PagerDutyApi()
    room = room_of({"pagerduty": pagerduty})
    room.tell(page())
    room.tell(page(1, 2, label={"cause": "node=node-1", "wrong": False, "by": "sam", "time": NOW}))
    assert pagerduty.alerts == {ONE: "acknowledged"}
    room.tell(resolved())
    assert pagerduty.alerts == {ONE: "resolved"}


@pytest.mark.parametrize(
    "fields",
    [{"severity": "info"}, {"severity": "info", "bucket": "telemetry"}, {"bucket": "planned", "severity": "info"}],
)
def test_info_is_told_to_nobody(room: Room, api: Api, fields: dict[str, Any]) -> None:
    room.tell(page(**fields))
    assert api.requests == []


def test_telemetry_never_pages(room_of: Callable[..., Room]) -> None:
    pagerduty, alertmanager = PagerDutyApi(), AlertmanagerApi()
    room = room_of({"pagerduty": pagerduty, "alertmanager": alertmanager})
    room.tell(page(bucket="telemetry", kind="input_silent", severity="page"))
    assert pagerduty.requests == []
    assert (alertmanager.pages, len(alertmanager.firing())) == ([], 1)
    assert {a["labels"]["severity"] for a in alertmanager.alerts.values()} == {"ticket"}


def test_a_ticket_that_becomes_a_page_pages_once(room_of: Callable[..., Room]) -> None:
    pagerduty, alertmanager = PagerDutyApi(), AlertmanagerApi()
    room = room_of({"pagerduty": pagerduty, "alertmanager": alertmanager})
    room.tell(page(severity="ticket"))
    assert (pagerduty.pages, alertmanager.pages) == ([], [])
    room.tell(page(1, 2))
    room.tell(page(1, 3, suspects=suspect("node-4")))
    assert (pagerduty.pages, alertmanager.pages) == ([ONE], [ONE])


def test_lowered_to_info_it_is_over(room_of: Callable[..., Room]) -> None:
    pagerduty = PagerDutyApi()
    room = room_of({"pagerduty": pagerduty})
    room.tell(page())
    room.tell(page(1, 2, severity="info", bucket="planned"))
    assert pagerduty.alerts == {ONE: "resolved"}


def test_an_alert_is_repeated_before_it_ends_by_itself(room_of: Callable[..., Room]) -> None:
    alertmanager = AlertmanagerApi()
    room = room_of({"alertmanager": alertmanager})
    room.tell(page())
    ends = []
    for _ in range(12):
        (alert,) = alertmanager.alerts.values()
        ends.append(alert["endsAt"])
        room.tell(after_s=HOUR_S / 6)
    assert len(alertmanager.requests) >= 5
    assert sorted(set(ends)) == sorted(dict.fromkeys(ends))
    assert len(set(ends)) >= 5
    room.tell(resolved())
    count = len(alertmanager.requests)
    for _ in range(6):
        room.tell(after_s=HOUR_S)
    assert len(alertmanager.requests) == count, "what is over is not repeated"


def test_over_the_limit_one_word_is_told_of_all_others(room_of: Callable[..., Room], kind: str, api: Api) -> None:
    room = room_of({kind: api}, limits={"new_per_hour": 5})
    room.tell(*(page(number) for number in range(1, 41)))
    room.tell(after_s=60.0)
    told = [key for key in api.pages if not key.startswith("withheld")]
    words = [key for key in api.pages if key.startswith("withheld")]
    assert len(told) == 5
    assert len(words) == (0 if isinstance(api, AlertmanagerApi) and not words else 1)
    assert room.senders[kind].figures.counts["withheld"] == 35
    if isinstance(api, PagerDutyApi):
        assert api.summaries[words[0]][-1].startswith("35 more incidents")
    room.tell(*(resolved(number) for number in range(1, 41)), after_s=3 * HOUR_S)
    room.tell()
    if isinstance(api, PagerDutyApi):
        assert set(api.alerts.values()) == {"resolved"}


def test_tickets_do_not_use_up_the_limit_of_pages(room_of: Callable[..., Room]) -> None:
    webhook = WebhookApi()
    room = room_of({"webhook": webhook}, limits={"new_per_hour": 5})
    room.tell(*(page(number, severity="ticket") for number in range(1, 41)))
    room.tell(page(99))
    assert f"{99:016x}" in webhook.pages


def test_after_a_night_without_the_service_what_is_still_open_is_told(room: Room, api: Api) -> None:
    room.store.begin_telling(room.now)
    room.store.take([(page(), room.now - 8 * HOUR_S)], FeedPosition(byte=1), room.now)
    room.tell()
    assert api.pages == [ONE]


def test_at_the_first_start_old_news_is_not_told(room: Room, api: Api) -> None:
    room.store.take([(page(), room.now - 1 * HOUR_S), (page(2), room.now - 60.0)], FeedPosition(byte=1), room.now)
    room.planner.turn(room.now, is_first=True)
    room.turn()
    assert api.pages == [f"{2:016x}"]
    assert room.planner.passed_over == {"too_old": 1}
