"""Everything that can be set for ``whichrank notify``: receivers, routes, limits. Secrets are named, never held."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ...telemetry.identity import DEFAULT_CLUSTER
from ...telemetry.vocabulary import Bucket, Kind, Scope
from ..support.addresses import split_address
from .kafka_options import KafkaOptions, default_data
from .secret_file import read_secret_file

ReceiverKind = Literal["alertmanager", "pagerduty", "slack", "webhook"]
#: Where those are reached that are the same for everybody.
KNOWN_URLS = {"pagerduty": "https://events.pagerduty.com/v2/enqueue", "slack": "https://slack.com/api"}
NEEDS_SECRET = frozenset({"pagerduty", "slack", "webhook"})
#: Words of a route that stand for receivers.
OWNER, OPERATIONS = "owner", "operations"
_RECEIVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")


class ReceiverOptions(BaseModel):
    """Who is told, and how. A table ``[notify_receivers.NAME]`` of the settings file."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    kind: ReceiverKind
    url: str = Field(default="", description="http(s)://HOST/PATH; known for pagerduty and slack")
    channel: str = Field(default="", description="of slack: the channel's id, as C0123456789")
    secret_file: Path | None = Field(default=None, description="file with routing key, token or secret")
    secret_variable: str = Field(default="", description="or the name of the environment variable that holds it")
    ca: Path | None = Field(default=None, description="authorities of its https, PEM; default: the system's")
    severities: list[Literal["page", "ticket"]] | None = Field(
        default=None, description="default: page, for others than pagerduty both"
    )
    shadow: bool = Field(
        default=False, description="gets a marked copy of everything that would have been sent to anybody"
    )
    new_per_hour: int = Field(
        default=30, ge=1, description="incidents that it is told anew, of pages and of tickets each"
    )
    timeout_s: float = Field(default=5.0, gt=0, le=60, description="of one try")
    lasts_s: float = Field(
        default=3600.0, ge=60, description="of alertmanager: an alert ends so long after the last word"
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if value and not re.match(r"https?://[^/\s@]+(/\S*)?\Z", value):
            raise ValueError("an address as https://HOST/PATH is needed, without user and password")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> ReceiverOptions:
        if not self.address:
            raise ValueError(f"a receiver of kind {self.kind} needs url")
        if self.kind == "slack" and not self.channel:
            raise ValueError("a receiver of kind slack needs channel")
        if self.kind in NEEDS_SECRET and self.secret_file is None and not self.secret_variable:
            raise ValueError(f"a receiver of kind {self.kind} needs secret_file or secret_variable")
        return self

    @property
    def address(self) -> str:
        """The url that was given, else where this kind of receiver usually is; "" not known.

        Without a slash at its end.
        """
        return (self.url or KNOWN_URLS.get(self.kind, "")).rstrip("/")

    @property
    def told_severities(self) -> frozenset[str]:
        """Severities that the receiver is told of; PagerDuty of pages alone, unless the settings say otherwise."""
        if self.severities is not None:
            return frozenset(self.severities)
        return frozenset({"page"} if self.kind == "pagerduty" else {"page", "ticket"})

    def secret(self) -> str:
        """The receiver's secret, from its file or variable; "" where none is needed and given.

        Raises ValueError where it is not to be had; no part of it is in the words.
        """
        if self.secret_file is not None:
            try:
                found = read_secret_file(self.secret_file)
            except ValueError as error:
                raise ValueError(f"secret_file {self.secret_file}: {error}") from None
            where = f"secret_file {self.secret_file}"
        else:
            found = os.environ.get(self.secret_variable, "").strip() if self.secret_variable else ""
            where = f"environment variable {self.secret_variable}"
        if not found and (self.kind in NEEDS_SECRET or self.secret_file is not None or self.secret_variable):
            raise ValueError(f"{where} is empty")
        if found and (not found.isprintable() or not found.isascii()):
            raise ValueError(f"{where} holds something else than one line of ASCII")
        return found


class RouteOptions(BaseModel):
    """Which incidents, by all that is given (``*`` and ``?`` in names of people and jobs), go to whom."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    sides: list[Literal["application", "operations"]] = Field(default=[], description="whose fault it is")
    scopes: list[Scope] = []
    severities: list[Literal["page", "ticket"]] = []
    buckets: list[Bucket] = []
    kinds: list[Kind] = []
    owners: list[str] = []
    jobs: list[str] = Field(default=[], description="the job's name or id")
    clusters: list[str] = []
    to: list[str] = Field(description=f"receivers; {OWNER}: the job owner's, {OPERATIONS}: notify_operations")
    also: bool = Field(default=False, description="go on with the next routes, too")


class NotifyOptions(KafkaOptions):
    """``whichrank notify``."""

    notify_from: Path | None = Field(None, description="folder of a run that is read instead of Kafka")
    notify_state: Path = Field(
        default_factory=lambda: default_data("notify"), description="folder for what was told to whom"
    )
    notify_health: str = Field("127.0.0.1:8463", description="HOST:PORT of /healthz, /readyz and /metrics; empty: none")
    notify_cluster: str = Field(DEFAULT_CLUSTER, description="name of the cluster where an incident names none")
    notify_shadow: bool = Field(False, description="tell shadow receivers only: a trial")
    notify_operations: list[str] = Field([], description="receivers of operations; default: all but shadow ones")
    notify_owners: dict[str, list[str]] = Field({}, description="by job owner (* allowed), that owner's receivers")
    notify_max_age_s: float = Field(86400.0, gt=0, description="older news is told to nobody")
    notify_link: str = Field("", description="where an incident can be looked at, as https://HOST/{incident}")
    notify_receivers: dict[str, ReceiverOptions] = Field({}, description="tables [notify_receivers.NAME]")
    notify_routes: list[RouteOptions] = Field([], description="tables [[notify_routes]]; the first that fits holds")

    @field_validator("notify_health")
    @classmethod
    def _check_health(cls, value: str) -> str:
        if value:
            split_address(value, 0)
        return value

    @field_validator("notify_link")
    @classmethod
    def _check_link(cls, value: str) -> str:
        if value and not (re.match(r"https?://\S+\Z", value) and "{incident}" in value):
            raise ValueError("an address with {incident} in it is needed")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> NotifyOptions:
        if not self.kafka and self.notify_from is None:
            raise ValueError("a source is needed: kafka (HOST:PORT), or notify_from (the folder of a run)")
        for name in self.notify_receivers:
            if not _RECEIVER_NAME.match(name) or name in (OWNER, OPERATIONS):
                raise ValueError(
                    f"notify_receivers.{name}: a name of letters, digits, - and _ is needed, and not {OWNER}"
                )
        places = {f"notify_owners.{owner}": to for owner, to in self.notify_owners.items()}
        places["notify_operations"] = self.notify_operations
        places |= {
            f"notify_routes {number}": [word for word in route.to if word not in (OWNER, OPERATIONS)]
            for number, route in enumerate(self.notify_routes, start=1)
        }
        for place, names in places.items():
            if unknown := [name for name in names if name not in self.notify_receivers]:
                known = ", ".join(self.notify_receivers) or "none"
                raise ValueError(f"{place}: {', '.join(unknown)}: no receiver; there are {known}")
            if shadows := [name for name in names if self.notify_receivers[name].shadow]:
                raise ValueError(f"{place}: {', '.join(shadows)}: gets all as a shadow receiver, and is in no route")
        return self

    @property
    def operations(self) -> tuple[str, ...]:
        """Receivers of what is nobody's program: those of the settings, else all that are no shadows."""
        everybody = [name for name, receiver in self.notify_receivers.items() if not receiver.shadow]
        return tuple(self.notify_operations or everybody)
