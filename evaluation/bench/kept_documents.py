"""What the bench keeps and tells, as JSON: scored runs, sound days, lines of its table. Parsing and writing only.

JSON has no infinity: what never came is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ...simulator.ground_truth import Truth
from ...simulator.scenarios.grounds import ground_of
from ...simulator.scoring.run_score import FaultScore, RunScore
from ...simulator.scoring.summary import ScoreLine
from .one_run import AskedRun
from .scored_run import Scored, Sound

SCHEMA = 1
_INFINITE = ("delay_s", "attributed_s", "steps", "usual_steps")
#: Of an incident, for who wants to know what was said.
_SAID = ("id", "state", "severity", "job", "kind", "scope", "confidence", "merged_into", "times", "cause", "hold")


class NotKept(ValueError):
    """It is not what was asked for, or cannot be read."""


def write_scored(scored: Scored) -> str:
    """A scored run as JSON text, which ``read_scored`` reads, with what was said, for people."""
    asked = scored.asked
    kept = {
        "schema": SCHEMA,
        "scenario": asked.scenario,
        "ranks": asked.ranks,
        "seed": asked.seed,
        "ground": ground_of(asked.scenario, asked.seed).name,
        "score": None if scored.score is None else asdict(scored.score),
        "simple": None if scored.simple is None else asdict(scored.simple),
        "cpu_s": scored.cpu_s,
        "wall_s": scored.wall_s,
        "rank_hours": scored.rank_hours,
        "memory_bytes": scored.memory_bytes,
        "problem": scored.problem,
        "transient": scored.is_late,
        "truth": [asdict(fault) for fault in scored.truth],
        "is_plain": asked.is_plain,
        "said": [_said(line) for line in scored.said],
    }
    return json.dumps(finite(kept), ensure_ascii=False)


def read_scored(asked: AskedRun, kept: bytes) -> Scored:
    """The scored run in a JSON text. Raises NotKept for something else than the run ``asked``."""
    try:
        found = json.loads(kept)
        if (found["schema"], found["scenario"], found["ranks"], found["seed"]) != (
            SCHEMA, asked.scenario, asked.ranks, asked.seed,
        ):  # fmt: skip
            raise NotKept("another run")
        return Scored(
            asked=asked,
            score=None if found["score"] is None else _score(found["score"]),
            simple=None if found["simple"] is None else _score(found["simple"]),
            cpu_s=float(found["cpu_s"]),
            wall_s=float(found["wall_s"]),
            rank_hours=float(found["rank_hours"]),
            memory_bytes=int(found["memory_bytes"]),
            problem=str(found["problem"]),
            truth=tuple(map(_truth, found["truth"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotKept(f"cannot be read: {error}") from error


def write_sound(sound: Sound) -> str:
    """What was seen of sound days as JSON text, which ``read_sound`` reads."""
    told = {"schema": SCHEMA, **asdict(sound)}
    told["transient"] = told.pop("is_late")
    return json.dumps(told, ensure_ascii=False)


def read_sound(kept: bytes) -> Sound:
    """What was seen of sound days, from the JSON text of ``write_sound``. Raises NotKept for something else."""
    try:
        found = json.loads(kept)
        if found["schema"] != SCHEMA:
            raise NotKept("another schema")
        return Sound(
            gpu_days=float(found["gpu_days"]),
            pages=int(found["pages"]),
            rank_steps=int(found["rank_steps"]),
            wall_s=float(found["wall_s"]),
            said=tuple(found["said"]),
            problem=str(found["problem"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotKept(f"cannot be read: {error}") from error


def write_lines(lines: Sequence[ScoreLine]) -> str:
    """Lines of the table as JSON text, which ``read_lines_of_table`` reads."""
    return json.dumps({"lines": [asdict(line) for line in lines]}, ensure_ascii=False)


def read_lines_of_table(kept: bytes) -> list[ScoreLine]:
    """Lines of the table, from the JSON text of ``write_lines``. Raises NotKept for something else."""
    names = ("name", "asked", "measured", "share", "ok", "is_run")
    try:
        return [ScoreLine(**{name: line[name] for name in names}) for line in json.loads(kept)["lines"]]
    except (KeyError, TypeError, ValueError) as error:
        raise NotKept(f"cannot be read: {error}") from error


def score_as_json(score: RunScore) -> Mapping[str, Any]:
    """A score as JSON data, for the answer of ``whichrank bench --json``."""
    return dict(finite(asdict(score)))


def finite(value: Any) -> Any:
    """The data with None for each number that is not finite: JSON has no infinity."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _said(line: bytes) -> Mapping[str, Any]:
    document = json.loads(line)
    return {name: document[name] for name in _SAID if name in document} | {
        "suspects": list(document.get("suspects", ()))[:3]
    }


def _score(kept: Mapping[str, Any]) -> RunScore:
    known = {field.name for field in fields(RunScore)}
    given = {key: value for key, value in kept.items() if key in known}
    given["faults"] = tuple(_fault(fault) for fault in given["faults"])
    given["wrong_nodes"] = tuple(given["wrong_nodes"])
    given["told"] = tuple((float(probability), bool(right)) for probability, right in given["told"])
    given["told_kinds"] = tuple(given.get("told_kinds") or ())
    return RunScore(**given)


def _fault(kept: Mapping[str, Any]) -> FaultScore:
    known = {field.name for field in fields(FaultScore)}
    given = {key: value for key, value in kept.items() if key in known}
    return FaultScore(**given | {name: math.inf if given[name] is None else given[name] for name in _INFINITE})


def _truth(kept: Mapping[str, Any]) -> Truth:
    known = {field.name for field in fields(Truth)}
    given: dict[str, Any] = {}
    for key in known & kept.keys():
        given[key] = tuple(kept[key]) if isinstance(kept[key], list) else kept[key]
    return Truth(**given)
