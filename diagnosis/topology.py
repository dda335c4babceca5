"""Where nodes stand: rack, leaf, spine, rail, power, from what sites already write down. Pure.

Sources: a table of one's own (TOML, JSON, CSV), Slurm's ``topology.conf`` (tree and block), labels of Kubernetes
nodes. All give the same: per node a mapping from a level ("rack", "leaf", "spine", "rail", "pdu", "block", "zone",
...) to a name. Text that cannot be read raises TopologyError, which names the line and the remedy.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from .data_file import read_toml
from .hostlist import HostlistError, expand_hostlist

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Places = dict[str, dict[str, str]]

#: Nodes of one file.
MAX_NODES = 200_000
_MAX_LEVELS = 64

_NODE_COLUMNS = ("node", "nodename", "node_name", "host", "hostname", "name")


@cache
def _words(table: str) -> Mapping[str, str]:
    """``topology_levels.toml``: "words" or "labels" -> our words."""
    found: dict[str, str] = read_toml(__package__, "topology_levels.toml")[table]
    return found


class TopologyError(ValueError):
    """One line for a person: what is wrong, where, what would be right."""


def level_of(word: str) -> str:
    """Our word for a level of the topology: "leaf" for "ToR-switch"; an unknown one stays, in lower case."""
    plain = re.sub(r"[^a-z0-9.]+", "_", word.strip().lower()).strip("_")
    return _words("words").get(plain, plain)


# --- files ------------------------------------------------------------------------------------------------------------


def parse_topology(text: str, name: str) -> Places:
    """Where nodes stand, by node, from a file's text. Raises TopologyError.

    name: of the file; its ending (.toml, .json, .csv, .tsv) tells the form; with another it is Slurm's topology.conf.
    """
    ending = name.rpartition(".")[2].lower()
    try:
        if ending == "toml":
            return _from_mapping(tomllib.loads(text), name)
        if ending == "json":
            return _from_mapping(json.loads(text), name)
        if ending in ("csv", "tsv"):
            return _from_csv(text, name, "\t" if ending == "tsv" else ",")
        return parse_slurm(text)
    except TopologyError as error:
        raise TopologyError(f"{name}: {error}" if not str(error).startswith(name) else str(error)) from None
    except (ValueError, RecursionError, csv.Error) as error:
        raise TopologyError(f"{name}: {str(error)[:200]}") from None


def _from_mapping(document: object, name: str) -> Places:
    """``[nodes."gpu[01-16]"] rack = "r1"``, or JSON of the same, or a list; a table within becomes "rail.mlx5_0"."""
    if isinstance(document, Mapping) and isinstance(document.get("nodes"), (Mapping, list)):
        document = document["nodes"]
    if isinstance(document, list):
        rows = [row for row in document if isinstance(row, Mapping)]
        entries: Iterable[tuple[str, object]] = ((_name_of(row, name), row) for row in rows)
    elif isinstance(document, Mapping):
        entries = ((str(key), value) for key, value in document.items())
    else:
        raise TopologyError(f'{name}: wants a table of nodes, such as [nodes."gpu[01-16]"] with rack = "r1"')
    found: Places = {}
    for hosts, labels in entries:
        if not isinstance(labels, Mapping):
            raise TopologyError(f'{name}: of {hosts[:60]!r} wants a table of labels, such as rack = "r1"')
        _add(found, hosts, dict(_labels(labels)))
    return found


def _name_of(row: Mapping[Any, Any], name: str) -> str:
    for column in row:
        if str(column).strip().lower() in _NODE_COLUMNS and isinstance(row[column], str):
            return str(row[column])
    raise TopologyError(f"{name}: an entry names no node; it wants one of {', '.join(_NODE_COLUMNS)}")


def _labels(table: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in list(table.items())[:_MAX_LEVELS]:
        level = prefix + level_of(str(key))
        if isinstance(value, Mapping) and not prefix:
            # Below a level stand names of devices, which are kept as they are.
            for device, one in list(value.items())[:_MAX_LEVELS]:
                if isinstance(one, (str, int)):
                    yield f"{level}.{device}", str(one)
        elif isinstance(value, (str, int)) and level not in _NODE_COLUMNS:
            yield level, str(value)


def _from_csv(text: str, name: str, separator: str) -> Places:
    """The first line names the columns; one of them the node."""
    lines = (line for line in io.StringIO(text) if line.strip() and not line.startswith("#"))
    rows = csv.DictReader(lines, delimiter=separator)
    columns = [column for column in rows.fieldnames or () if column]
    node = next((column for column in columns if column.strip().lower() in _NODE_COLUMNS), None)
    if node is None:
        raise TopologyError(
            f"{name}: the first line names no column of nodes; it wants one of {', '.join(_NODE_COLUMNS)}"
        )
    found: Places = {}
    for row in rows:
        labels = {level_of(key): row[key].strip() for key in columns if key != node and row[key]}
        if row[node]:
            _add(found, row[node].strip(), {level: value for level, value in labels.items() if value})
    return found


def _add(found: Places, hosts: str, labels: Mapping[str, str]) -> None:
    for host in expand_hostlist(hosts):
        if len(found) >= MAX_NODES:
            raise TopologyError(f"more than {MAX_NODES} nodes")
        found.setdefault(host, {}).update(labels)


# --- Slurm ------------------------------------------------------------------------------------------------------------


def parse_slurm(text: str) -> Places:
    """Where nodes stand, by Slurm's topology.conf. Raises TopologyError, with the line.

    That is a tree of switches (nodes hang on a leaf, leaves on a spine, spines on a core) or blocks.
    """
    found: Places = {}
    above: dict[str, str] = {}
    leaves: dict[str, list[str]] = {}
    for number, fields in _slurm_lines(text):
        try:
            switch, block = fields.get("switchname", ""), fields.get("blockname", "")
            nodes = expand_hostlist(fields.get("nodes", ""))
            if switch:
                leaves.setdefault(switch, []).extend(nodes)
                above.update(dict.fromkeys(expand_hostlist(fields.get("switches", "")), switch))
            elif block:
                _add_all(found, nodes, {"block": block})
            elif nodes:
                raise TopologyError("nodes without SwitchName= or BlockName=")
        except (TopologyError, HostlistError) as error:
            raise TopologyError(f"line {number}: {error}") from None
    for leaf, nodes in leaves.items():
        if nodes:
            _add_all(found, nodes, dict(zip(("leaf", "spine", "core"), _upwards(leaf, above), strict=False)))
    return found


def _upwards(leaf: str, above: Mapping[str, str]) -> Iterator[str]:
    seen: set[str] = set()
    switch: str | None = leaf
    while switch is not None and switch not in seen:
        yield switch
        seen.add(switch)
        switch = above.get(switch)


def _add_all(found: Places, nodes: Iterable[str], labels: Mapping[str, str]) -> None:
    for node in nodes:
        if len(found) >= MAX_NODES:
            raise TopologyError(f"more than {MAX_NODES} nodes")
        found.setdefault(node, {}).update(labels)


def _slurm_lines(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, fields with names in lower case); a backslash at the end of a line goes on in the next."""
    pending, begun = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        line = pending + line if pending.endswith(",") else f"{pending} {line}"
        begun = begun or number
        if line.endswith("\\"):
            pending = line[:-1].rstrip()
            continue
        fields = {}
        for word in line.split():
            key, equals, value = word.partition("=")
            if not equals:
                raise TopologyError(f"line {begun}: {word[:40]!r} is no KEY=VALUE of topology.conf")
            fields[key.lower()] = value
        if fields:
            yield begun, fields
        pending, begun = "", 0


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def from_kubernetes_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Where a node stands by its labels: known labels, and those of any domain whose last part is a level's word."""
    known, words = _words("labels"), _words("words")
    found: dict[str, str] = {}
    for label, value in sorted(labels.items()):
        level = known.get(label)
        if level is None:
            domain, slash, word = label.rpartition("/")
            level = words.get(word.lower().replace("-", "_")) if slash or not domain else None
        if level is not None and value:
            found.setdefault(level, value)
    # A known label says more than a name that looks like one.
    found.update({known[label]: value for label, value in labels.items() if label in known and value})
    return found


def parse_label_list(text: str) -> dict[str, str]:
    """Labels in ``key=value,key=value``, as kubectl prints them and one variable can hold them.

    Other parts are left out.
    """
    pairs = (part.partition("=") for part in text[:100_000].split(","))
    return {key.strip(): value.strip() for key, equals, value in pairs if equals and key.strip()}


# --- one node ---------------------------------------------------------------------------------------------------------


def place_of(places: Mapping[str, Mapping[str, str]], names: Iterable[str]) -> Mapping[str, str]:
    """Where the node stands that goes by any of these names, with or without its domain; {} if it is not there."""
    names = [name for name in names if name]
    for name in names:
        if name in places:
            return places[name]
    short = {_short(name) for name in names}
    return next((labels for node, labels in places.items() if _short(node) in short), {})


def _short(name: str) -> str:
    """A host's name without its domain; an address has none."""
    first = name.partition(".")[0].lower()
    return name.lower() if first.isdecimal() else first
