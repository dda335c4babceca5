"""A receiver's reference as the store keeps it: JSON with the fields that are known. Parsing and writing only."""

from __future__ import annotations

import json
from dataclasses import asdict

from . import NO_REFERENCE, ReceiverReference


def write_reference(reference: ReceiverReference) -> str:
    """The reference as JSON, with only what is known: as releases before this one have written it."""
    nothing = asdict(NO_REFERENCE)
    return json.dumps({name: value for name, value in asdict(reference).items() if value != nothing[name]})


def read_reference(text: str) -> ReceiverReference:
    """What a receiver needs to find its earlier message again (labels, channel, ts, replies), from its JSON text.

    Absent fields are as where nothing is known. Raises ValueError for what is no JSON object.
    """
    known = json.loads(text)
    if not isinstance(known, dict):
        raise ValueError("no JSON object")
    replied = known.get("replied")
    return ReceiverReference(
        labels={str(name): str(value) for name, value in (known.get("labels") or {}).items()},
        ts=str(known.get("ts") or ""),
        channel=str(known.get("channel") or ""),
        replied=None if replied is None else str(replied),
        openings=int(known.get("openings") or 0),
    )
