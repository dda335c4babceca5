"""Which host a foreign point is about: labels and resource attributes by which exporters and collectors name it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

from ...telemetry.records import Point
from ..data_file import read_toml

#: "http://10.0.0.5:9100/metrics", "node-1:9400", "[fd00::1]:9100".
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]{0,20}://", re.IGNORECASE)
_MAX_NAME = 253
#: Labels that were looked at: of most exporters they are the same on all hosts.
_REMEMBERED = 16_384
_INSTANCE = "service.instance.id"
SCRAPED_HOST = "whichrank.scraped.host"


@cache
def _table() -> Mapping[str, Any]:
    return read_toml(__package__, "hosts.toml")


def host_of(text: str) -> str:
    """The host's name or address in a label, in lower case: without scheme, port and path; "" if it names none."""
    host = _SCHEME.sub("", text.strip()[:1000]).partition("/")[0]
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    host = host.lower().rstrip(".")
    table = _table()
    if not host or len(host) > _MAX_NAME or host in table["ignored"] or any(c.isspace() for c in host):
        return ""
    return "" if any(exporter in host for exporter in table["exporters"]) else host


def scraped_host_labels() -> Mapping[str, str]:
    """By metric in which an exporter says where it runs: the label that has the host's name."""
    labels: Mapping[str, str] = _table()["scraped_host"]
    return labels


def with_scraped_host(resource: Mapping[str, object], points: Iterable[Point]) -> Mapping[str, object]:
    """The resource with the host's name added that the scraped exporter itself says, if it says one.

    A target at 127.0.0.1 has no other name, and one behind an address none that people know.
    """
    labels = scraped_host_labels()
    said = (point.attributes.get(labels[point.name]) for point in points if point.name in labels)
    host = next((text for text in said if isinstance(text, str) and text), "")
    return {**resource, SCRAPED_HOST: host} if host else resource


def entity_of(
    kind: str, labels: Mapping[str, object], resource: Mapping[str, object], aliases: Mapping[str, str]
) -> str:
    """The id of the node, switch, server or service (``kind``) that a foreign point is about; "" if nothing names one.

    aliases: any name of a host, and any GPU's UUID, in lower case -> the id by which that node is known here. A GPU
    goes before any name, a name that is known before one that is not.
    """
    for label in _table()["gpu"] if aliases else ():
        text = labels.get(label)
        if isinstance(text, str) and text.lower() in aliases:
            return aliases[text.lower()]
    list_of = kind if kind in ("switch", "service") else "node"
    told = (*_named(list_of, "label", _texts(labels)), *_named(list_of, "resource", _texts(resource)))
    names = [name for _, name in sorted(told)] or [name for _, name in _named("own", "resource", _texts(resource))]
    for name in names:
        known = aliases.get(name) or aliases.get(name.partition(".")[0])
        if known:
            return known
    return names[0] if names else ""


def _texts(told: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """What can name a host, to look it up by: the same of all points of an exporter, or of all exporters of a kind."""
    return tuple([(key, text) for key, text in told.items() if isinstance(text, str)])


@lru_cache(maxsize=_REMEMBERED)
def _named(list_of: str, where: str, told: tuple[tuple[str, str], ...]) -> tuple[tuple[int, str], ...]:
    """Hosts that these labels ("label") or attributes ("resource") name, each with its place in the list's order."""
    texts = dict(told)
    found: list[tuple[int, str]] = []
    for number, place in enumerate(_table()[list_of]):
        of, _, key = place.partition(":")
        text = texts.get(key, "") if of == where else ""
        if key == _INSTANCE and ":" not in text:
            continue  # an instance without a port is no target of a scrape but some number of a process
        host = host_of(text)
        if host:
            found.append((number, host))
    return tuple(found)
