"""Plans are put where operators read them: on the topic of people's words, or in the folder of a run that goes on."""

from __future__ import annotations

import contextlib
import datetime
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table

from ...telemetry.otlp import decode_logs
from ...telemetry.records import Finding
from ...telemetry.topics import TOPIC_WORDS
from ...transport.kafka_client import Client
from ...transport.kafka_read import read_whole
from ..incidents.label import send_of_people, who
from ..incidents.run_source import newest_run
from ..run_folder.maintenance_plans import append_plan, finding_of_plan, read_plans
from ..run_folder.people_codec import MaintenancePlan, NoWord, read_plan, write_plan
from ..run_folder.run_directory import Unusable
from ..support.stderr import say

SCHEMA = 1
#: What concerns a job, and what concerns a place.
OF_JOBS = ("cancel", "shrink", "profiler")
OF_PLACES = ("maintenance", "drain")
ATTRIBUTES = ("node", "leaf", "spine", "rack", "pdu", "storage", "fabric")
MAX_DAYS = 30.0
_MAX_NAMES = 4096


class Board(Protocol):
    where: str
    cluster: str

    def put(self, plan: MaintenancePlan) -> None:
        """Puts a plan where operators read it. Raises Unusable, KafkaTrouble."""

    def all(self) -> list[MaintenancePlan]:
        """All plans, in the order in which they were said."""
        ...


class FolderBoard:
    """plans.jsonl of a run's folder. Raises Unusable."""

    def __init__(self, path: Path | None) -> None:
        self._path = path or newest_run()
        if not self._path.is_dir():
            raise Unusable(f"{self._path}: no such folder; is it the folder of a run? (--from)")
        self.where, self.cluster = str(self._path), ""

    def put(self, plan: MaintenancePlan) -> None:
        """Appends the plan to the file. Raises Unusable."""
        append_plan(self._path, plan)

    def all(self) -> list[MaintenancePlan]:
        """All plans, as they stand in the file. Raises Unusable."""
        try:
            return read_plans(self._path)[0]
        except OSError as error:
            raise Unusable(f"{error.filename}: {error.strerror or error}") from error


class KafkaBoard:
    """The topic of people's words. Raises KafkaTrouble."""

    def __init__(self, client: Client, brokers: str, cluster: str) -> None:
        self._client, self.cluster = client, cluster
        self.where = f"Kafka at {brokers}"

    def put(self, plan: MaintenancePlan) -> None:
        """Sends the plan as a finding to the topic of people's words. Raises KafkaTrouble."""
        send_of_people(self._client, finding_of_plan(plan, self.cluster))

    def all(self) -> list[MaintenancePlan]:
        """All plans of this board's cluster that retention has left, in the order in which they were said.

        Raises KafkaTrouble.
        """
        found: list[tuple[int, MaintenancePlan]] = []
        for message in read_whole(self._client, TOPIC_WORDS):
            for payload in decode_logs(TOPIC_WORDS, message.value):
                if isinstance(payload, Finding) and "plan" in payload.body and payload.identity.cluster == self.cluster:
                    with contextlib.suppress(NoWord):  # of somebody who writes it otherwise
                        plan = read_plan({**payload.body["plan"], "over": payload.cleared})
                        found.append((message.stamp_ns, plan))
        return [plan for _, plan in sorted(found, key=lambda each: each[0])]


def announce(
    board: Board, what: str, *, where: Sequence[str], jobs: Sequence[str], begin: str, end: str, as_json: bool
) -> None:
    """Puts a plan on the board, and prints it. Raises Unusable for one that makes no sense, KafkaTrouble.

    where: LEVEL=NAME; begin, end: ISO 8601 or +MINUTES.
    """
    now = time.time()
    begin_s = moment(begin, now, "--begin")
    end_s = moment(end, begin_s, "--end")
    places = _places(where)
    if what not in OF_JOBS + OF_PLACES:
        raise Unusable(f"{what!r} is none of {', '.join(OF_PLACES + OF_JOBS)}")
    if what in OF_JOBS and (places or not jobs):
        raise Unusable(f"{what} concerns jobs: say which with --job, and no --where")
    if not places and not jobs:
        raise Unusable(f"say what {what} concerns: --where node=NAME, or --job ID")
    if end_s <= begin_s or end_s - begin_s > MAX_DAYS * 86_400.0:
        raise Unusable(f"--end must come after --begin, by {MAX_DAYS:.0f} days at most")
    if end_s <= now:
        raise Unusable("--end has passed: what was not announced explains nothing")
    plan = MaintenancePlan(
        id=secrets.token_hex(4),
        what=what,
        begin_s=round(begin_s, 3),
        end_s=round(end_s, 3),
        told_s=round(now, 3),
        where={attribute: tuple(names) for attribute, names in places.items()},
        jobs=tuple(dict.fromkeys(jobs)),
        by=who(),
    )
    board.put(plan)
    if as_json:
        print(json.dumps({"schema": SCHEMA, "to": board.where, "plan": write_plan(plan)}))
    else:
        say(f"{plan.id}: {_in_words(plan)}; told to {board.where}")


def cancel(board: Board, id_: str, *, as_json: bool) -> None:
    """Calls off the plan with this id, or beginning of one, and prints that.

    Raises Unusable where there is not exactly one, or it was called off before, and KafkaTrouble.
    """
    found = [plan for plan in newest(board.all()) if plan.id.startswith(id_)]
    if len(found) != 1:
        raise Unusable(f"{id_}: {'no such plan' if not found else 'several plans begin so'} in {board.where}")
    if found[0].is_over:
        raise Unusable(f"{found[0].id}: was called off before")
    plan = replace(found[0], is_over=True, told_s=round(time.time(), 3), by=who())
    board.put(plan)
    if as_json:
        print(json.dumps({"schema": SCHEMA, "to": board.where, "plan": write_plan(plan)}))
    else:
        say(f"{plan.id}: called off; told to {board.where}")


def list_plans(board: Board, *, as_json: bool) -> None:
    """Prints all plans, with whether they go on. Raises Unusable, KafkaTrouble."""
    plans, now = newest(board.all()), time.time()
    if as_json:
        shown = [{**write_plan(plan), "now": _state(plan, now)} for plan in plans]
        print(json.dumps({"schema": SCHEMA, "from": board.where, "plans": shown}))
        return
    if not plans:
        say(f"nobody has announced anything in {board.where}")
        return
    table = Table("id", "what", "where", "begin", "end", "by", "now", box=None, pad_edge=False)
    for plan in plans:
        table.add_row(
            plan.id,
            plan.what,
            _place(plan),
            _clock(plan.begin_s),
            _clock(plan.end_s),
            plan.by,
            _state(plan, now),
        )
    Console().print(table)


def newest(plans: Sequence[MaintenancePlan]) -> list[MaintenancePlan]:
    """Of each plan the newest word, in order of their beginnings."""
    by_id = {plan.id: plan for plan in plans}
    return sorted(by_id.values(), key=lambda plan: (plan.begin_s, plan.id))


def moment(text: str, since_s: float, flag: str) -> float:
    """Unix seconds of an ISO 8601 time (this machine's zone where it names none), or of +MINUTES. Raises Unusable."""
    try:
        if text.startswith("+"):
            return since_s + float(text[1:]) * 60.0
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise Unusable(f"{flag} {text!r}: a time as 2026-05-01T18:00+00:00, or +MINUTES") from None


def _places(where: Sequence[str]) -> dict[str, list[str]]:
    """Raises Unusable."""
    found: dict[str, list[str]] = {}
    for text in where:
        attribute, _, names = text.partition("=")
        values = [name.strip() for name in names.split(",") if name.strip()]
        if attribute not in ATTRIBUTES or not values:
            raise Unusable(f"--where {text!r}: one of {', '.join(f'{each}=NAMES' for each in ATTRIBUTES)}")
        found.setdefault(attribute, []).extend(values)
    if sum(map(len, found.values())) > _MAX_NAMES:
        raise Unusable(f"--where: more than {_MAX_NAMES} names; say leaf= or rack= instead")
    return found


def _state(plan: MaintenancePlan, now: float) -> str:
    if plan.is_over:
        return "called off"
    return "to come" if now < plan.begin_s else "over" if now > plan.end_s else "on"


def _in_words(plan: MaintenancePlan) -> str:
    return f"{plan.what} of {_place(plan)}, {_clock(plan.begin_s)} to {_clock(plan.end_s)}"


def _place(plan: MaintenancePlan) -> str:
    places = [f"{attribute} {', '.join(names)}" for attribute, names in plan.where.items()]
    return "; ".join([*places, *(f"job {job}" for job in plan.jobs)])


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
