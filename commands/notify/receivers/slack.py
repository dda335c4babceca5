"""Slack: one message per incident in a channel, edited as it changes; what is worth reading again is a reply below it.

chat.postMessage has no key by which Slack would know a repetition. So each message carries our key as metadata, and
where a try may have arrived, the channel is read before another one. What incidents hold is escaped: nobody is
mentioned by it, and no link is made of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from ..messages.notices import AlertState, Notice
from ..messages.routes import Urgency
from . import DeliveryAnswer, DeliveryContext, DeliveryOutcome, ReceiverReference
from .http import Http, Reply, json_body

_EVENT_TYPE = "whichrank_incident"
#: Answers that say "not like this", whoever tries. All others may be mended: by waiting, or by a person.
_REFUSALS = frozenset({"msg_too_long", "no_text", "invalid_blocks", "invalid_arguments", "metadata_too_large"})
_BY_PEOPLE_S = 60.0
#: Of 200 messages each; one that lies further back is posted again.
_MOST_PAGES = 50
_SIGNS = {
    AlertState.OPEN: ":red_circle:",
    AlertState.ACKNOWLEDGED: ":large_yellow_circle:",
    AlertState.CLOSED: ":white_circle:",
}
_MENTIONS = ("channel", "here", "everyone")
#: Between the sign and the word of a mention: it is read the same, and mentions nobody.
_JOINER = "\u2060"
_ANYWHERE: Mapping[str, str | bool] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metadata:
    event_type: str
    event_payload: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """As chat.postMessage and chat.update take it."""

    text: str
    unfurl_links: bool = False
    unfurl_media: bool = False
    link_names: bool = False
    metadata: _Metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class _Posted:
    """A message that is there. key None: it is none of ours. is_root: no reply within a thread."""

    ts: str
    is_root: bool
    key: str | None
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlackReply:
    """trouble None: Slack has done it."""

    ts: str = ""
    channel: str = ""
    messages: tuple[_Posted, ...] = ()
    next_cursor: str = ""
    trouble: DeliveryAnswer | None = None


class Slack:
    def __init__(self, http: Http, token: str, channel: str) -> None:
        self._http = http
        self._headers = {"Authorization": f"Bearer {token}"}
        self._channel = channel

    def send(self, notice: Notice, telling: DeliveryContext) -> DeliveryAnswer:
        """Edits the message that is known, or that an earlier try has left, else posts one; says what came of it.

        Never raises for what Slack answers.
        """
        reference = telling.reference
        if not reference.ts and telling.is_unsure:
            found = self._find("conversations.history", notice)
            if isinstance(found, DeliveryAnswer):
                return found
            if found is not None:
                reference = replace(reference, ts=found.ts, replied=found.topic)
            if found is None and notice.standing is AlertState.CLOSED:
                return DeliveryAnswer(outcome=DeliveryOutcome.TOLD)  # it never arrived
        if not reference.ts:
            return self._post(notice)
        edited = self._call("chat.update", _message(notice), {"ts": reference.ts})
        if edited.trouble is not None:
            return replace(edited.trouble, reference=reference)
        return self._reply(notice, telling, reference)

    def _post(self, notice: Notice) -> DeliveryAnswer:
        posted = self._call("chat.postMessage", _message(notice))
        if posted.trouble is not None:
            return posted.trouble
        reference = ReceiverReference(ts=posted.ts, channel=posted.channel, replied=notice.topic)
        return DeliveryAnswer(outcome=DeliveryOutcome.TOLD, reference=reference)

    def _reply(self, notice: Notice, telling: DeliveryContext, reference: ReceiverReference) -> DeliveryAnswer:
        """Below the message, what has changed; once."""
        told = DeliveryAnswer(outcome=DeliveryOutcome.TOLD, reference=replace(reference, replied=notice.topic))
        if reference.replied in (None, notice.topic):
            return told
        if telling.is_unsure:
            found = self._find("conversations.replies", notice, thread_ts=reference.ts)
            if isinstance(found, DeliveryAnswer):
                return replace(found, reference=reference)
            if found is not None:
                return told
        text = f"{_standing_words(notice)}: {escape(notice.title)}"
        # One that is back is shown in the channel, too: nobody looks into a thread that was over.
        more: Mapping[str, str | bool] = {"thread_ts": reference.ts, "reply_broadcast": notice.is_new}
        replied = self._call("chat.postMessage", _message(notice, text), more)
        return told if replied.trouble is None else replace(replied.trouble, reference=reference)

    def _find(self, method: str, notice: Notice, thread_ts: str = "") -> _Posted | DeliveryAnswer | None:
        """The message of this key that an earlier try has left, or the reply in that thread; None: there is none.

        An Answer where Slack does not say.
        """
        cursor = ""
        fields = {"ts": thread_ts} if thread_ts else {}
        for _ in range(_MOST_PAGES):
            asked = {"channel": self._channel, "include_all_metadata": "true", "limit": "200", **fields}
            reply = _read(
                self._http.get(f"/{method}", {**asked, **({"cursor": cursor} if cursor else {})}, self._headers)
            )
            if reply.trouble is not None:
                # Without the right to read, better two messages than none.
                return None if "missing_scope" in reply.trouble.detail else reply.trouble
            for message in reply.messages:
                if message.key != notice.key or (thread_ts and message.topic != notice.topic):
                    continue
                if thread_ts or message.is_root:
                    return message
            cursor = reply.next_cursor
            if not cursor:
                break
        return None

    def _call(self, method: str, message: _Message, place: Mapping[str, str | bool] = _ANYWHERE) -> _SlackReply:
        """place: of a message that is there already."""
        body = json_body({"channel": self._channel, **place, **asdict(message)})
        headers = {**self._headers, "Content-Type": "application/json; charset=utf-8"}
        return _read(self._http.post(body, headers, f"/{method}"))


def escape(text: str) -> str:
    """Somebody else's text as mrkdwn that shows it: no markup of links or mentions is left in it."""
    for word in _MENTIONS:
        text = text.replace(f"@{word}", f"@{_JOINER}{word}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _message(notice: Notice, text: str = "") -> _Message:
    payload = {"key": notice.key, "topic": notice.topic}
    return _Message(text=text or _words(notice), metadata=_Metadata(event_type=_EVENT_TYPE, event_payload=payload))


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


def _read(reply: Reply) -> _SlackReply:
    """Slack answers 200 with an error in the body, too."""
    if reply.trouble is not None:
        return _SlackReply(trouble=reply.trouble)
    try:
        found = json.loads(reply.body)
    except (ValueError, RecursionError):
        found = {}
    body = found if isinstance(found, dict) else {}
    if body.get("ok") is True:
        messages = body.get("messages")
        return _SlackReply(
            ts=_text(body.get("ts")),
            channel=_text(body.get("channel")),
            messages=tuple(_posted(each) for each in (messages if isinstance(messages, list) else ())),
            next_cursor=_text(_field(body.get("response_metadata"), "next_cursor")),
        )
    error = str(body.get("error") or "no answer that can be read")[:100]
    if error in _REFUSALS:
        return _SlackReply(trouble=DeliveryAnswer(outcome=DeliveryOutcome.REFUSED, detail=f"Slack answered {error}"))
    is_unsure = "error" not in body
    again = DeliveryAnswer(
        outcome=DeliveryOutcome.AGAIN,
        detail=f"Slack answered {error}",
        retry_after_s=None if error in ("ratelimited", "internal_error", "fatal_error") else _BY_PEOPLE_S,
        is_unsure=is_unsure or error in ("internal_error", "fatal_error"),
    )
    return _SlackReply(trouble=again)


def _posted(message: object) -> _Posted:
    """message: one of Slack's own, as JSON has it."""
    told, ts = _field(_field(message, "metadata"), "event_payload"), _field(message, "ts")
    key = _field(told, "key")
    return _Posted(
        ts=_text(ts),
        is_root=_field(message, "thread_ts") in (None, ts),
        key=key if isinstance(key, str) else None,
        topic=_text(_field(told, "topic")),
    )


def _field(value: object, name: str) -> object:
    """Of an object; None of anything else that Slack may send in its place."""
    return value.get(name) if isinstance(value, dict) else None


def _text(value: object) -> str:
    """What Slack says as text; "" for anything else, and for what no request could hold."""
    return value if isinstance(value, str) and value.isascii() else ""
