"""A condition that a collector judges by itself, as an event: begun or worse, or over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ....telemetry.vocabulary import Action, EventName, Scope
from .collector import NodeEvent, Timestamps


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """name: of a condition in ``processors/entity/conditions.toml``. device: "" of the node itself. since_s: seconds
    ago. severity: a word of ``condition_rules.SEVERITIES``.
    """

    name: str
    device: str = ""
    device_kind: str = "host"
    severity: str = "error"
    domain: str = ""
    action: Action | None = None
    scope: Scope | None = None
    text: str = ""
    since_s: float = 0.0
    is_over: bool = False

    def happening(self, source: str, now: Timestamps) -> NodeEvent:
        """The event that tells it. source: who judges."""
        attributes: dict[str, str | float | bool | None] = {
            "source": source,
            "event": self.name,
            "device": self.device,
            "device_kind": self.device_kind,
            "severity": self.severity,
            "domain": self.domain,
            "action": self.action.value if self.action is not None else None,
            "scope": self.scope.value if self.scope is not None else None,
            "text": self.text,
            "age_s": round(max(self.since_s, 0.0), 3),
            "over": self.is_over or None,
        }
        return _event(now, attributes)


def looks_anew(source: str, now: Timestamps, still: Iterable[tuple[str, str]] = ()) -> NodeEvent:
    """To be told first: what this source said before it was started again holds no more.

    still: names and devices of what it finds this time as well, which goes on.
    """
    return _event(now, {"source": source, "anew": True, "still": tuple(f"{name}/{device}" for name, device in still)})


def _event(now: Timestamps, attributes: Mapping[str, str | float | bool | tuple[str, ...] | None]) -> NodeEvent:
    told = {name: value for name, value in attributes.items() if value not in ("", None, ())}
    return NodeEvent(name=EventName.NODE_CONDITION, time_ns=now.wall_ns, mono_ns=now.mono_ns, attributes=told)
