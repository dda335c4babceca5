"""How much a node asks of a service that others use too: told when it is far beyond its own usual, and when that ends.

Few services say who burdens them; the clients' counters do. What is usual is the node's own mean over the last half
hour; it is told too, once an hour, so that somebody can say which share of the whole one job has. Of servers that count
by job (``server_loads``) the rules stand here too. Pure.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ...telemetry.records import Point
from .conditions import EntityState

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

FILE = "loads.toml"
#: So many times its usual rate is far beyond it, and so many times is no longer.
HIGH, LOW = 8.0, 3.0
#: Of a node whose usual rate is not known yet: so many times the floor.
HIGH_UNKNOWN = 4.0
#: Samples after which the usual rate is known.
ENOUGH = 12
USUAL_S = 1800.0
#: It must last so long to be told, and be low for so long to be over.
HOLDS_S, CLEAR_S = 10.0, 20.0
#: What has lasted for so long is the usual from then on.
NEW_USUAL_S = 3600.0
USUAL_TOLD_S = 3600.0
MAX_SERIES = 512
_TARGET = re.compile(r"(.{1,100}?)-(?:MDT|OST)[0-9a-fA-F]{1,8}(?:-.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRule:
    metric: str
    service: str
    attribute: str
    classes: Mapping[str, str]  # value of the attribute -> class
    floor: float
    job: str = ""  # attribute that names the job, where the server counts by job
    filesystem: bool = False

    def service_of(self, point: Point) -> str:
        """The service that a point is about; "": none."""
        name = str(point.attributes.get(self.service, ""))
        return filesystem_of(name) if self.filesystem else name

    def class_of(self, point: Point) -> str:
        """The class of operations that a point counts; "": none."""
        return self.classes.get(str(point.attributes.get(self.attribute, "")), self.classes.get("*", ""))


def filesystem_of(target: str) -> str:
    """The file system that a target of a server is a part of: "lustre" of "lustre-MDT0000"; else the target itself."""
    found = _TARGET.fullmatch(target)
    return found[1] if found is not None else target


@cache
def load_load_rules() -> Mapping[str, LoadRule]:
    """Rules of ``loads.toml`` by metric. Raises KeyError or ValueError where the file is wrong; a test reads it."""
    content = tomllib.loads(resources.files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    rules = [
        LoadRule(
            metric=entry["metric"],
            service=entry["service"],
            attribute=entry["attribute"],
            classes={value: name for name, values in entry["classes"].items() for value in values},
            floor=float(entry["floor"]),
            job=entry.get("job", ""),
            filesystem=bool(entry.get("filesystem", False)),
        )
        for entry in content["load"]
    ]
    return {rule.metric: rule for rule in rules}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadNews:
    """What is to be told of an entity's load on a service. usual, rate: per second; usual None: not known.

    since, until: of the burst (Unix seconds); since None where the usual rate is told, until None while it lasts. job:
    as the server names the one that asks, whole: the rate of all jobs together; "" and 0 where a client tells.
    """

    service: str
    operation: str
    usual: float | None
    since: float | None
    until: float | None
    rate: float
    job: str = ""
    whole: float = 0.0


#: Begin, end and rate of a burst, as ``LoadNews`` has them.
_Burst = tuple[float | None, float | None, float]


def take_loads(state: EntityState, points: Iterable[Point]) -> list[LoadNews]:
    """Follows the entity's loads by points that rules are about; returns bursts that began or ended, and usual rates
    that are due.
    """
    told = []
    for (service, operation, floor), (rate, before_s, time_s) in _rates(state, points).items():
        row = state.loads.get(f"{service}\t{operation}")
        if row is None:
            if len(state.loads) >= MAX_SERIES:
                continue
            row = state.loads[f"{service}\t{operation}"] = new_row()
        news = follow(row, rate, before_s, time_s, floor)
        if news is not None:
            usual = row["usual"] if row["seen"] >= ENOUGH else None
            since, until, told_rate = news
            told.append(
                LoadNews(service=service, operation=operation, usual=usual, since=since, until=until, rate=told_rate)
            )
    return told


def new_row() -> dict[str, float]:
    """What is remembered of a load of which nothing is known yet, for ``follow``."""
    return {"usual": 0.0, "seen": 0, "high": 0.0, "low": 0.0, "since": 0.0, "told": 0.0, "usual_at": 0.0}


def follow(row: dict[str, float], rate: float, before_s: float, time_s: float, floor: float) -> _Burst | None:
    """Takes the rate between two looks (Unix seconds) into the row; begin, end and rate of a burst that began, grew
    twofold or ended by it; no begin: the usual rate, where it is due; None where nothing is to be told.
    """
    is_known = row["seen"] >= ENOUGH
    high = max(floor, HIGH * row["usual"]) if is_known else HIGH_UNKNOWN * floor
    if row["since"]:
        low = max(floor / 2, LOW * row["usual"]) if is_known else floor
        if rate >= low and time_s - row["since"] < NEW_USUAL_S:
            row["low"] = 0.0
            if rate < 2 * row["told"]:
                return None
            row["told"] = rate
            return row["since"], None, rate
        row["low"] = row["low"] or before_s
        if time_s - row["low"] < CLEAR_S and rate < low:
            return None
        since, until = row["since"], row["low"]
        row["since"] = row["low"] = row["high"] = 0.0
        if rate >= low:
            row["usual"] = rate
        return since, until, row["told"]
    if rate > high:
        row["high"] = row["high"] or before_s
        if time_s - row["high"] < HOLDS_S:
            return None
        row["since"], row["told"] = row["high"], rate
        return row["since"], None, rate
    row["high"] = 0.0
    row["seen"] += 1
    weight = max(1.0 / row["seen"], min(1.0, (time_s - before_s) / USUAL_S))
    row["usual"] += (rate - row["usual"]) * weight
    if row["seen"] >= ENOUGH and time_s - row["usual_at"] >= USUAL_TOLD_S and row["usual"] > 0:
        row["usual_at"] = time_s
        return None, None, round(row["usual"], 3)
    return None


def _rates(state: EntityState, points: Iterable[Point]) -> dict[tuple[str, str, float], tuple[float, float, float]]:
    """By service and class of operation: per second, since when, at what time (Unix seconds)."""
    rates: dict[tuple[str, str, float], tuple[float, float, float]] = {}
    for rule, operation, grown, before_s, time_s, service in _growths(state, points):
        key = (service, operation, rule.floor)
        rate, first_s, last_s = rates.get(key, (0.0, before_s, time_s))
        rates[key] = (rate + grown / (time_s - before_s), min(first_s, before_s), max(last_s, time_s))
    return rates


def _growths(state: EntityState, points: Iterable[Point]) -> Iterator[tuple[LoadRule, str, float, float, float, str]]:
    rules = load_load_rules()
    for point in points:
        rule = rules[point.name]
        operation, service = rule.class_of(point), rule.service_of(point)
        if not operation or not service or rule.job:
            continue
        name = f"{point.name}\t{service}\t{point.attributes.get(rule.attribute)}"
        before = state.load_series.get(name)
        if before is None and len(state.load_series) >= MAX_SERIES:
            continue
        time_s, start_s = point.time_ns / 1e9, point.start_ns / 1e9
        if before is not None and time_s <= before[1]:
            continue
        state.load_series[name] = [point.value, time_s, start_s]
        if before is None or point.value < before[0] or (before[2] and before[2] != start_s):
            continue  # the first look, or the counter began anew
        yield rule, operation, point.value - before[0], before[1], time_s, service
