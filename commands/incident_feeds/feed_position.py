"""How far a feed has read, and its JSON: where a service goes on after a restart. Parsing and writing only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPosition:
    """Of a topic its identity, and the next offset of each partition; of a file its identity, and the next byte."""

    topic: str = ""
    offsets: Mapping[int, int] = field(default_factory=dict)
    file: str = ""
    byte: int = 0


#: Nothing was ever read.
BEGINNING = FeedPosition()


def write_position(position: FeedPosition) -> str:
    """The position as JSON, in the form of all releases."""
    if position.file:
        return json.dumps({"file": position.file, "offset": position.byte})
    if position.topic or position.offsets:
        return json.dumps({"topic": position.topic, "offsets": {str(k): v for k, v in position.offsets.items()}})
    return json.dumps({})


def read_position(text: str | bytes) -> FeedPosition:
    """The position in a JSON text; BEGINNING where it is none."""
    try:
        found = json.loads(text)
        return FeedPosition(
            topic=str(found.get("topic") or ""),
            offsets={int(number): int(at) for number, at in (found.get("offsets") or {}).items()},
            file=str(found.get("file") or ""),
            byte=int(found.get("offset") or 0),
        )
    except (ValueError, TypeError, AttributeError):
        return BEGINNING
