"""Which job burdens a storage server, by the server's own count per job (Lustre's jobstats): told while it asks for far
more than is usual of it. Pure.

The job is told as the server names it; whose it is says ``cluster/shared/job_names``.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...telemetry.records import Point
from .conditions import EntityState
from .loads import LoadNews, LoadRule, follow, load_load_rules, new_row

#: Of one server: series of jobs, targets and operations that were ever above 0, and loads of jobs.
MAX_SERIES = 16_384
MAX_LOADS = 4_096
#: A job of which a server has said nothing for so long is over there.
FORGOTTEN_S = 1800.0
_MAX_NAME = 128
_Key = tuple[str, str, str]  # service, class of operation, job


def take_server_loads(state: EntityState, points: Iterable[Point]) -> list[LoadNews]:
    """Follows what each job asks of the server by points that rules with a job are about; returns bursts that began,
    grew or ended.
    """
    rules = load_load_rules()
    asked = [(rule, point) for point in points if (rule := rules[point.name]).job]
    if not asked:
        return []  # as of every node
    rates: dict[_Key, float] = {}
    floors: dict[_Key, float] = {}
    before_s = time_s = 0.0
    for rule, point in asked:
        grown = _grown(state, rule, point)
        if grown is None:
            continue
        key, growth, passed_s = grown
        rates[key] = rates.get(key, 0.0) + growth / passed_s
        floors[key] = rule.floor
        time_s = point.time_ns / 1e9
        before_s = time_s - passed_s
    if not rates:
        return []
    whole: dict[tuple[str, str], float] = {}
    for (service, operation, _), rate in rates.items():
        whole[service, operation] = whole.get((service, operation), 0.0) + rate
    told = []
    for key, rate in rates.items():
        service, operation, job = key
        name = "\t".join(key)
        row = state.job_loads.get(name)
        if row is None:
            if rate < floors[key] or (len(state.job_loads) >= MAX_LOADS and not _make_room(state, time_s)):
                continue
            row = state.job_loads[name] = new_row()
        row["at"] = time_s
        news = follow(row, rate, before_s, time_s, floors[key])
        if news is not None and news[0] is not None:
            since, until, told_rate = news
            told.append(
                LoadNews(
                    service=service, operation=operation, usual=None, since=since, until=until, rate=told_rate,
                    job=job, whole=max(told_rate, whole[service, operation]),
                )
            )  # fmt: skip
    return [*told, *_gone(state, time_s)]


def _grown(state: EntityState, rule: LoadRule, point: Point) -> tuple[_Key, float, float] | None:
    """Whose count it is, by how much it has grown, and in which time; None where that is not known."""
    job = str(point.attributes.get(rule.job, ""))[:_MAX_NAME].replace("\t", " ")
    target = str(point.attributes.get(rule.service, ""))
    operation, service = rule.class_of(point), rule.service_of(point).replace("\t", " ")
    if not (rule.job and job and operation and service):
        return None
    key, time_s = (service, operation, job), point.time_ns / 1e9
    name = f"{point.name}\t{target}\t{point.attributes.get(rule.attribute)}\t{job}"
    known = state.job_series.get(name)
    if known is None:
        seen_s = state.jobs_seen.get(f"{target}\t{job}")
        if seen_s is None and len(state.jobs_seen) >= MAX_SERIES:
            return None
        state.jobs_seen[f"{target}\t{job}"] = time_s
        if not point.value or len(state.job_series) >= MAX_SERIES:
            return None  # most jobs never do most operations
        state.job_series[name] = [point.value, time_s]
        # Of a job that was seen before this operation was 0 until now.
        return (key, point.value, time_s - seen_s) if seen_s is not None and time_s > seen_s else None
    state.jobs_seen[f"{target}\t{job}"] = time_s
    was, was_s = known
    if time_s <= was_s:
        return None
    state.job_series[name] = [point.value, time_s]
    return (key, point.value - was, time_s - was_s) if point.value >= was else None


def _gone(state: EntityState, now_s: float) -> list[LoadNews]:
    """Bursts of jobs of which the server says nothing any more; what is known of them goes."""
    told = []
    for name, row in list(state.job_loads.items()):
        if now_s - row.get("at", now_s) <= FORGOTTEN_S:
            continue
        del state.job_loads[name]
        if row["since"]:
            service, operation, job = name.split("\t", 2)
            told.append(
                LoadNews(
                    service=service, operation=operation, usual=None, since=row["since"], until=row["at"],
                    rate=row["told"], job=job, whole=row["told"],
                )
            )  # fmt: skip
    if len(state.jobs_seen) > 64 and min(state.jobs_seen.values()) < now_s - 2 * FORGOTTEN_S:
        state.jobs_seen = {name: at for name, at in state.jobs_seen.items() if now_s - at <= FORGOTTEN_S}
        state.job_series = {name: row for name, row in state.job_series.items() if now_s - row[1] <= FORGOTTEN_S}
    return told


def _make_room(state: EntityState, now_s: float) -> bool:
    """Drops the load that was low for longest; False where all are bursts."""
    idle = [name for name, row in state.job_loads.items() if not row["since"]]
    if not idle:
        return False
    del state.job_loads[min(idle, key=lambda name: state.job_loads[name].get("at", 0.0))]
    return True
