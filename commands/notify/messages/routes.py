"""Who is told of an incident: by its urgency, whose fault it is, and the routes of the settings. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from ....telemetry.incident_document import IncidentDocument, word_of
from ....telemetry.vocabulary import Action, Bucket, Kind, Scope, Severity
from ...settings.notify_options import OPERATIONS, OWNER, RouteOptions

APPLICATION_DOMAIN = "application"
#: What only the owner of a program can do.
_OWNERS_ACTIONS = frozenset({Action.FIX_CODE, Action.RAISE_QUOTA})
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


def urgency_of(incident: IncidentDocument) -> Urgency | None:
    """How loudly an incident is told; None: nobody is told. What only says that whichrank cannot see never pages."""
    if incident.severity is Severity.INFO:
        return None
    if incident.severity is Severity.PAGE and incident.bucket is not Bucket.TELEMETRY:
        return Urgency.PAGE
    return Urgency.TICKET


def side_of(incident: IncidentDocument) -> Side:
    """Whose fault it is: a known cause decides, then the scope, then who can do what is advised."""
    cause, advice = incident.cause, incident.advice
    if cause is not None:
        is_program = cause.domain == APPLICATION_DOMAIN or cause.device_kind == _CODE
    elif incident.scope is Scope.APPLICATION:
        is_program = True
    else:
        # Where nothing is known of the node, an exception is the program's.
        is_owners = advice is not None and advice.action in _OWNERS_ACTIONS
        is_program = is_owners or incident.kind is Kind.RANK_RAISED
    return Side.APPLICATION if is_program else Side.OPERATIONS


def would_tell(incident: IncidentDocument, routing: Routing) -> tuple[str, ...]:
    """Receivers that the routes name for an incident, each once; shadows and a trial are not looked at."""
    urgency = urgency_of(incident)
    if urgency is None:
        return ()
    names = dict.fromkeys(_routed(incident, urgency, routing))
    return tuple(name for name in names if urgency.value in routing.severities.get(name, ()))


def receivers_of(incident: IncidentDocument, routing: Routing) -> tuple[str, ...]:
    """Receivers that are told of an incident, shadow receivers included: they get what anybody would have got."""
    told = would_tell(incident, routing)
    if not told:
        return ()
    return (*(() if routing.is_trial else told), *routing.shadows)


def _routed(incident: IncidentDocument, urgency: Urgency, routing: Routing) -> Iterator[str]:
    for route in routing.routes:
        if not _fits(incident, urgency, route):
            continue
        for word in route.to:
            if word == OWNER:
                yield from _owners_receivers(incident, routing)
            elif word == OPERATIONS:
                yield from routing.operations
            else:
                yield word
        if not route.also:
            return


def _owners_receivers(incident: IncidentDocument, routing: Routing) -> Sequence[str]:
    """Of the first row of owners that fits; operations where there is none: somebody must hear of it."""
    owner = incident.job.owner or ""
    return next(
        (names for pattern, names in routing.owners.items() if owner and fnmatchcase(owner, pattern)),
        routing.operations,
    )


def _fits(incident: IncidentDocument, urgency: Urgency, route: RouteOptions) -> bool:
    job = incident.job
    closed: tuple[tuple[Sequence[str], str], ...] = (
        (route.sides, side_of(incident).value),
        (route.scopes, word_of(incident.scope)),
        (route.severities, urgency.value),
        (route.buckets, word_of(incident.bucket)),
        (route.kinds, word_of(incident.kind)),
    )
    if any(wanted and value not in wanted for wanted, value in closed):
        return False
    patterns = (
        (route.owners, (job.owner,)),
        (route.jobs, (job.name, job.id)),
        (route.clusters, (incident.cluster,)),
    )
    return all(not wanted or _any_fits(wanted, values) for wanted, values in patterns)


def _any_fits(patterns: Sequence[str], values: Sequence[str | None]) -> bool:
    return any(fnmatchcase(value or "", pattern) for pattern in patterns for value in values)
