"""Who is told of an incident: by its urgency, whose fault it is, and the routes of the settings. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from ....telemetry.vocabulary import Action, Bucket, Kind, Scope, Severity
from ...settings.notify_options import OPERATIONS, OWNER, RouteOptions

APPLICATION_DOMAIN = "application"
#: What only the owner of a program can do.
_OWNERS_ACTIONS = frozenset({Action.FIX_CODE.value, Action.RAISE_QUOTA.value})
#: Rows of a document's ``cause`` that name no device but a line of the program.
_CODE = "code"

#: Where the settings give no routes.
DEFAULT_ROUTES = (
    RouteOptions(sides=["application"], to=[OWNER]),
    RouteOptions(to=[OPERATIONS]),
)


class Urgency(str, Enum):
    """How loudly somebody is told."""

    PAGE = "page"
    TICKET = "ticket"


class Side(str, Enum):
    """Whose fault it is, and so who can mend it."""

    APPLICATION = "application"
    OPERATIONS = "operations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """severities: by receiver that is no shadow, in the order of the settings. is_trial: only shadows are told."""

    severities: Mapping[str, frozenset[str]]
    shadows: tuple[str, ...] = ()
    routes: Sequence[RouteOptions] = DEFAULT_ROUTES
    owners: Mapping[str, Sequence[str]]
    operations: Sequence[str]
    is_trial: bool = False


def urgency_of(document: Mapping[str, Any]) -> Urgency | None:
    """None: nobody is told. What only says that whichrank cannot see never pages."""
    severity = document.get("severity")
    if severity == Severity.INFO.value:
        return None
    if severity == Severity.PAGE.value and document.get("bucket") != Bucket.TELEMETRY.value:
        return Urgency.PAGE
    return Urgency.TICKET


def side_of(document: Mapping[str, Any]) -> Side:
    """A known cause decides, then the scope, then who can do what is advised."""
    cause = document.get("cause")
    if isinstance(cause, Mapping):
        is_program = cause.get("domain") == APPLICATION_DOMAIN or cause.get("device_kind") == _CODE
    elif document.get("scope") == Scope.APPLICATION.value:
        is_program = True
    else:
        advice = document.get("advice") or {}
        # Where nothing is known of the node, an exception is the program's.
        is_program = advice.get("action") in _OWNERS_ACTIONS or document.get("kind") == Kind.RANK_RAISED.value
    return Side.APPLICATION if is_program else Side.OPERATIONS


def would_tell(document: Mapping[str, Any], routing: Routing) -> tuple[str, ...]:
    """Receivers by the routes, each once; shadows and a trial are not looked at."""
    urgency = urgency_of(document)
    if urgency is None:
        return ()
    names = dict.fromkeys(_routed(document, urgency, routing))
    return tuple(name for name in names if urgency.value in routing.severities.get(name, ()))


def receivers_of(document: Mapping[str, Any], routing: Routing) -> tuple[str, ...]:
    """Who is told, shadow receivers included: they get what anybody would have got."""
    told = would_tell(document, routing)
    if not told:
        return ()
    return (*(() if routing.is_trial else told), *routing.shadows)


def _routed(document: Mapping[str, Any], urgency: Urgency, routing: Routing) -> Iterator[str]:
    for route in routing.routes:
        if not _fits(document, urgency, route):
            continue
        for word in route.to:
            if word == OWNER:
                yield from _owners_receivers(document, routing)
            elif word == OPERATIONS:
                yield from routing.operations
            else:
                yield word
        if not route.also:
            return


def _owners_receivers(document: Mapping[str, Any], routing: Routing) -> Sequence[str]:
    """Of the first row of owners that fits; operations where there is none: somebody must hear of it."""
    owner = str((document.get("job") or {}).get("owner") or "")
    return next(
        (names for pattern, names in routing.owners.items() if owner and fnmatchcase(owner, pattern)),
        routing.operations,
    )


def _fits(document: Mapping[str, Any], urgency: Urgency, route: RouteOptions) -> bool:
    job = document.get("job") or {}
    closed = (
        (route.sides, side_of(document).value),
        (route.scopes, document.get("scope")),
        (route.severities, urgency.value),
        (route.buckets, document.get("bucket")),
        (route.kinds, document.get("kind")),
    )
    if any(wanted and value not in wanted for wanted, value in closed):
        return False
    patterns = (
        (route.owners, (job.get("owner"),)),
        (route.jobs, (job.get("name"), job.get("id"))),
        (route.clusters, (document.get("cluster"),)),
    )
    return all(not wanted or _any_fits(wanted, values) for wanted, values in patterns)


def _any_fits(patterns: Sequence[str], values: Sequence[Any]) -> bool:
    return any(fnmatchcase(str(value or ""), pattern) for pattern in patterns for value in values)
