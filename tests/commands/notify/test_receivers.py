"""What each API is sent: forms, sizes, escaping, and that no secret is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.commands.notify.conftest import Room, page, suspect
from tests.commands.notify.parts import SECRET, AlertmanagerApi, Api, PagerDutyApi, SlackApi, Status, WebhookApi
from whichrank.commands.notify.messages.notices import notice_of
from whichrank.commands.notify.receivers.http import Http, _retry_after_s
from whichrank.commands.notify.receivers.pagerduty import MAX_EVENT_BYTES, MAX_SUMMARY_CHARS, event
from whichrank.commands.notify.receivers.slack import _words, escape

NASTY = "<!channel> <@U1> <http://evil|safe> & @here @channel @everyone <!subteam^S1>"
TEXTS = st.text(max_size=400) | st.sampled_from([NASTY, "\x1b[2J", "a\nb", "\u202e", "&lt;!channel&gt;", "*_~`"])


@given(TEXTS)
def test_no_text_can_mention_or_link_in_slack(text: str) -> None:
    escaped = escape(text)
    assert not set("<>") & set(escaped)
    assert not re.search(r"&(?!amp;|lt;|gt;)", escaped)
    assert not re.search(r"@(channel|here|everyone)", escaped)
    back = escaped.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").replace("\u2060", "")
    assert back == text.replace("\u2060", ""), "it is shown as it was"


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(TEXTS, TEXTS, TEXTS)
def test_nothing_in_a_document_becomes_markup_of_slack(name: str, node: str, shows: str) -> None:
    evidence = [{"signal": "s", "source": "rank 1", "time": 1.0, "value": None, "shows": shows}]
    document = page(job={"id": "1", "name": name, "owner": node}, suspects=suspect(node), evidence=evidence)
    notice = notice_of(document, link="https://x.example/{incident}")
    text = _words(notice)
    assert re.findall(r"<[^>]*>", text) == [f"<https://x.example/{notice.incident}|incident {notice.incident}>"]
    assert len(text.splitlines()) == len(notice.rows) + 2, "no text makes lines of its own"
    assert len(text) < 40_000


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(TEXTS, st.integers(0, 3000))
def test_events_of_pagerduty_keep_to_its_limits(text: str, times: int) -> None:
    many = [{**suspect(f"node-{number}")[0], "id": text} for number in range(times % 50)]
    notice = notice_of(page(suspects=many, job={"id": text * 20, "name": text * 20}))
    for action in ("trigger", "acknowledge", "resolve"):
        body = event(notice, action, SECRET)
        told = json.loads(body)
        assert len(body) <= MAX_EVENT_BYTES
        assert len(told["dedup_key"]) <= 255
        if action == "trigger":
            assert 0 < len(told["payload"]["summary"]) <= MAX_SUMMARY_CHARS


def test_labels_of_alerts_are_id_severity_and_bucket_only(room_of: Callable[..., Room]) -> None:
    api = AlertmanagerApi()
    room_of({"alertmanager": api}).tell(page(suspects=suspect("node-7")))
    (alert,) = api.alerts.values()
    assert set(alert["labels"]) == {"alertname", "incident", "severity", "bucket"}
    assert "node-7" in alert["annotations"]["suspect"]
    assert alert["annotations"]["kind"] == "rank_not_entered"


def test_slack_is_asked_to_make_nothing_of_the_text(room_of: Callable[..., Room]) -> None:
    api = SlackApi()
    room_of({"slack": api}).tell(page(job={"id": "1", "name": NASTY}))
    (message,) = api.roots
    assert "<" not in message["text"]
    assert (message["link_names"], message["unfurl_links"]) == (False, False)


def test_slack_without_the_right_to_read_posts_rather_twice_than_never(room_of: Callable[..., Room]) -> None:
    api = SlackApi()
    api.scopes = {"chat:write"}
    api.answers = [Status(code=500)]
    room_of({"slack": api}).tell(page(), after_s=30.0)
    assert len(api.roots) == 1


@pytest.mark.parametrize("error", ["invalid_auth", "channel_not_found", "ratelimited", "is_archived"])
def test_slack_says_what_is_wrong_with_200(room_of: Callable[..., Room], error: str) -> None:
    api = SlackApi()
    api.answers = [Status(code=200, body={"ok": False, "error": error})]
    room = room_of({"slack": api})
    room.tell(page(), after_s=1.0)
    assert f"Slack answered {error}" in str(room.senders["slack"].figures.trouble) or api.roots
    room.tell(after_s=120.0)
    room.tell()
    assert len(api.roots) == 1


def test_the_webhook_tells_the_whole_incident_without_secrets(room_of: Callable[..., Room]) -> None:
    api = WebhookApi()
    room_of({"webhook": api}).tell(page())
    (told,) = api.told
    assert told["document"]["id"] == told["incident"] == told["key"]
    assert "hunter2" not in json.dumps(told), "what looks like a secret in a text of the job"
    assert api.wrong == []


@pytest.mark.parametrize("script", [Status(code=400), Status(code=401), Status(code=500), "drop"])
def test_no_secret_is_in_what_is_said_of_a_failure(
    room: Room, api: Api, script: Status | str, caplog: pytest.LogCaptureFixture
) -> None:
    api.answers = [script]
    room.tell(page(), after_s=0.1)
    (sender,) = room.senders.values()
    assert SECRET not in caplog.text + str(sender.figures.trouble)
    assert sender.figures.trouble or api.pages


def test_a_redirect_is_not_followed(room_of: Callable[..., Room]) -> None:
    api = PagerDutyApi()
    api.answers = [Status(code=302, headers={"Location": "/elsewhere"})]
    room = room_of({"pagerduty": api})
    room.tell(page(), after_s=0.0)
    assert len(api.requests) == 1
    assert "302" in str(room.senders["pagerduty"].figures.trouble)


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7.0), ("0", 0.0), (None, None), ("soon", None), ("", None), ("-3", None)]
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert _retry_after_s(value) == seconds


def test_what_is_shown_of_an_address_holds_no_query() -> None:
    assert Http("https://h.example:8/p?token=abc", timeout_s=1.0).shown == "https://h.example:8/p"
