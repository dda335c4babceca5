"""What an event says of a node or a device, as fields: attributes of kernel lines, drivers' events, probes and logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Seconds of three hundred years: beyond it no time can be reckoned with.
_LARGEST = 1e10


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFacts:
    """What an event says. word, code: the kernel's or driver's. age_s: how long it lasts already; below 0: it lies
    ahead.

    gpu, link, mount: None where the event is about none. words: all that it says, for one that has no text.
    """

    word: str = ""
    code: str = ""
    device_kind: str = ""
    severity: str = "error"
    domain: str = ""
    action: str = ""
    text: str = ""
    words: str = ""
    role: str = ""
    state: str = ""
    pid: int = 0
    of_job: str = ""
    age_s: float = 0.0
    gpu: str | None = None
    link: str | None = None
    pci_bus: str = ""
    device: str = ""
    mount: str | None = None
    operation: str = "a look"
    is_answered: bool = False
    is_over: bool = False

    @property
    def device_name(self) -> str:
        """The GPU, its link as ID/NUMBER, another device, or the mount; "" of the node itself."""
        if self.gpu is not None and self.link is not None:
            return f"{self.gpu}/{self.link}"
        return self.gpu or self.device or self.mount or ""

    @property
    def shown(self) -> str:
        """Words for people: the text that it came with, else its attributes, or how long a look at the mount is out."""
        if self.text or self.mount is None:
            return self.text or self.words
        return f"{self.operation} on {self.mount} has not returned for {self.age_s:.0f} s"


NOTHING = SignalFacts()


def read_signal(found: Mapping[str, Any], otherwise: SignalFacts = NOTHING) -> SignalFacts:
    """found: attributes of an event; otherwise: what holds of those that it leaves out, or says as no number."""

    def name(key: str) -> str | None:
        return None if found.get(key) is None else str(found[key])

    text = str(found.get("text", otherwise.text) or "")
    scalars = () if text else ((key, value) for key, value in found.items() if isinstance(value, str | int | float))
    return SignalFacts(
        word=str(found.get("event", otherwise.word)),
        code=str(found.get("code", otherwise.code)),
        device_kind=str(found.get("device_kind", otherwise.device_kind) or ""),
        severity=str(found.get("severity", otherwise.severity)),
        domain=str(found.get("domain", otherwise.domain) or ""),
        action=str(found.get("action", otherwise.action) or ""),
        text=text,
        words=" ".join(f"{key} {value}" for key, value in scalars),
        role=str(found.get("role") or ""),
        state=str(found.get("state", "")),
        pid=int(_number(found.get("pid"))),
        age_s=_number(found.get("age_s")),
        gpu=name("gpu_uuid"),
        link=name("link"),
        pci_bus=str(found.get("pci_bus") or ""),
        device=str(found.get("device") or ""),
        mount=name("mount"),
        operation=str(found.get("operation", "a look")),
        is_answered=bool(found.get("answered")),
        is_over=bool(found.get("over")),
    )


def _number(value: object) -> float:
    """0.0 where it is none, or none that a clock or a counter shows: an agent's or an exporter's own words."""
    try:
        number = float(value or 0.0)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if abs(number) < _LARGEST else 0.0
