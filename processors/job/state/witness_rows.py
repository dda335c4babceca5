"""What witnesses have said of an attempt as JSON values, and back; dumps have rows of their own (``witness_state``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ....telemetry.vocabulary import Kind, Scope
from ..detectors.hang.second_opinion import NamedRank, Testimony
from .witness_state import WitnessState


def write_witnesses(state: WitnessState) -> dict[str, Any]:
    """All but the dumps, as JSON values for ``read_witnesses``; {} where nothing was said."""
    if not state.said and not state.ras_asked and not state.due_ns:
        return {}
    return {
        "said": [asdict(testimony) for testimony in state.said.values()],
        "left_out": state.left_out,
        "due_ns": state.due_ns,
        "ras_asked": state.ras_asked,
        "ras_due_ns": state.ras_due_ns,
    }


def read_witnesses(values: Mapping[str, Any]) -> WitnessState:
    """What ``write_witnesses`` gave; nothing was said for {}. Raises KeyError, TypeError or ValueError for another."""
    if not values:
        return WitnessState()
    said = [_read_testimony(each) for each in values["said"]]
    return WitnessState(
        left_out=values["left_out"],
        due_ns=values["due_ns"],
        said={testimony.signal: testimony for testimony in said},
        ras_asked=values["ras_asked"],
        ras_due_ns=values["ras_due_ns"],
    )


def _read_testimony(values: Mapping[str, Any]) -> Testimony:
    return Testimony(
        **{
            **values,
            "kind": Kind(values["kind"]) if values["kind"] else None,
            "scope": Scope(values["scope"]) if values["scope"] else None,
            "named": tuple(NamedRank(**one) for one in values["named"]),
            "unseen": tuple(values["unseen"]),
        }
    )
