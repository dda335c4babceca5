"""Slack: one message per incident in a channel, edited as it changes; what is worth reading again is a reply below it.

chat.postMessage has no key by which Slack would know a repetition. So each message carries our key as metadata, and
where a try may have arrived, the channel is read before another one. What incidents hold is escaped: nobody is
mentioned by it, and no link is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..messages.notices import AlertState, Notice
from ..messages.routes import Urgency
from . import Answer, DeliveryContext, Outcome
from .http import Http, Reply, json_body

_EVENT_TYPE = "whichrank_incident"
#: Answers that say "not like this", whoever tries. All others may be mended: by waiting, or by a person.
_REFUSALS = frozenset({"msg_too_long", "no_text", "invalid_blocks", "invalid_arguments", "metadata_too_large"})
_BY_PEOPLE_S = 60.0
_SIGNS = {
    AlertState.OPEN: ":red_circle:",
    AlertState.ACKNOWLEDGED: ":large_yellow_circle:",
    AlertState.CLOSED: ":white_circle:",
}
_MENTIONS = ("channel", "here", "everyone")
#: Between the sign and the word of a mention: it is read the same, and mentions nobody.
_JOINER = "\u2060"


class Slack:
    def __init__(self, http: Http, token: str, channel: str) -> None:
        self._http = http
        self._headers = {"Authorization": f"Bearer {token}"}
        self._channel = channel

    def send(self, notice: Notice, telling: DeliveryContext) -> Answer:
        reference = dict(telling.reference)
        if not reference.get("ts") and telling.is_unsure:
            found = self._find("conversations.history", notice, {})
            if isinstance(found, Answer):
                return found
            reference |= found
            if not found and notice.standing is AlertState.CLOSED:
                return Answer(outcome=Outcome.TOLD)  # it never arrived
        if not reference.get("ts"):
            return self._post(notice)
        edited = self._call("chat.update", {"ts": reference["ts"], **_message(notice)})
        if edited.trouble is not None:
            return replace(edited.trouble, reference=reference)
        return self._reply(notice, telling, reference)

    def _post(self, notice: Notice) -> Answer:
        posted = self._call("chat.postMessage", _message(notice))
        if posted.trouble is not None:
            return posted.trouble
        reference = {"ts": str(posted.body.get("ts") or ""), "channel": str(posted.body.get("channel") or "")}
        return Answer(outcome=Outcome.TOLD, reference={**reference, "replied": notice.topic})

    def _reply(self, notice: Notice, telling: DeliveryContext, reference: dict[str, Any]) -> Answer:
        """Below the message, what has changed; once."""
        if reference.get("replied") in (None, notice.topic):
            return Answer(outcome=Outcome.TOLD, reference={**reference, "replied": notice.topic})
        if telling.is_unsure:
            found = self._find("conversations.replies", notice, {"ts": str(reference["ts"])})
            if isinstance(found, Answer):
                return replace(found, reference=reference)
            if found:
                return Answer(outcome=Outcome.TOLD, reference={**reference, "replied": notice.topic})
        text = f"{_standing_words(notice)}: {escape(notice.title)}"
        # One that is back is shown in the channel, too: nobody looks into a thread that was over.
        more = {"thread_ts": reference["ts"], "reply_broadcast": notice.is_new}
        replied = self._call("chat.postMessage", {**more, **_message(notice, text)})
        if replied.trouble is not None:
            return replace(replied.trouble, reference=reference)
        return Answer(outcome=Outcome.TOLD, reference={**reference, "replied": notice.topic})

    def _find(self, method: str, notice: Notice, fields: Mapping[str, str]) -> dict[str, Any] | Answer:
        """The message, or reply, of this key that an earlier try has left; an Answer where Slack does not say."""
        cursor = ""
        is_reply = bool(fields)
        while True:
            asked = {"channel": self._channel, "include_all_metadata": "true", "limit": "200", **fields}
            reply = _read(
                self._http.get(f"/{method}", {**asked, **({"cursor": cursor} if cursor else {})}, self._headers)
            )
            if reply.trouble is not None:
                # Without the right to read, better two messages than none.
                return {} if "missing_scope" in reply.trouble.detail else reply.trouble
            for message in reply.body.get("messages") or ():
                told = (message.get("metadata") or {}).get("event_payload") or {}
                if told.get("key") != notice.key or (is_reply and told.get("topic") != notice.topic):
                    continue
                if is_reply or message.get("thread_ts") in (None, message.get("ts")):
                    return {"ts": str(message["ts"]), "replied": str(told.get("topic") or "")}
            cursor = str((reply.body.get("response_metadata") or {}).get("next_cursor") or "")
            if not cursor:
                return {}

    def _call(self, method: str, fields: Mapping[str, Any]) -> Reply:
        body = json_body({"channel": self._channel, **fields})
        headers = {**self._headers, "Content-Type": "application/json; charset=utf-8"}
        return _read(self._http.post(body, headers, f"/{method}"))


def escape(text: str) -> str:
    """Text of somebody else as mrkdwn that shows it: no markup of links or mentions is left in it."""
    for word in _MENTIONS:
        text = text.replace(f"@{word}", f"@{_JOINER}{word}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _message(notice: Notice, text: str = "") -> dict[str, Any]:
    return {
        "text": text or _words(notice),
        "unfurl_links": False,
        "unfurl_media": False,
        "link_names": False,
        "metadata": {"event_type": _EVENT_TYPE, "event_payload": {"key": notice.key, "topic": notice.topic}},
    }


def _words(notice: Notice) -> str:
    lines = [f"{_SIGNS[notice.standing]} *{_standing_words(notice)}* {escape(notice.title)}"]
    lines += [f"{name}: {escape(text)}" for name, text in notice.rows]
    end = f"incident {escape(notice.incident)}"
    lines.append(f"<{notice.link}|{end}>" if notice.link else end)
    return "\n".join(lines)


def _standing_words(notice: Notice) -> str:
    mark = f"{notice.mark}: " if notice.mark else ""
    if notice.merged_into:
        return f"{mark}merged into {escape(notice.merged_into)}"
    urgency = "page" if notice.urgency is Urgency.PAGE else "ticket"
    return (
        mark
        + {AlertState.OPEN: urgency, AlertState.ACKNOWLEDGED: f"{urgency}, looked at", AlertState.CLOSED: "over"}[
            notice.standing
        ]
    )


def _read(reply: Reply) -> Reply:
    """Slack answers 200 with an error in the body, too."""
    if reply.trouble is not None or reply.body.get("ok") is True:
        return reply
    error = str(reply.body.get("error") or "no answer that can be read")[:100]
    if error in _REFUSALS:
        return Reply(body={}, trouble=Answer(outcome=Outcome.REFUSED, detail=f"Slack answered {error}"))
    is_unsure = "error" not in reply.body
    again = Answer(
        outcome=Outcome.AGAIN,
        detail=f"Slack answered {error}",
        retry_after_s=None if error in ("ratelimited", "internal_error", "fatal_error") else _BY_PEOPLE_S,
        is_unsure=is_unsure or error in ("internal_error", "fatal_error"),
    )
    return Reply(body={}, trouble=again)
