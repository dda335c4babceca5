"""docs/exporters: a page for each exporter of other people, made of the crosswalk and of the rules of conditions.

What is used of an exporter, as what, and for which condition follows from the tables; how to scrape it, and how its
points find their node, switch or server, stands here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...diagnosis.crosswalk import rules as crosswalk_rules
from ...diagnosis.crosswalk.rules import CrosswalkRule, sources
from ...diagnosis.data_file import read_toml
from ...processors.entity.condition_rules import MetricRule, Rules
from ...processors.entity.loads import load_load_rules
from ...processors.entity.rules import load_rules
from .markdown import code, codes, section, table

FOLDER = Path(__file__).parents[2] / "docs" / "exporters"
INDEX = "index.md"
_CROSSWALK = crosswalk_rules.__package__ or ""
#: What nobody asks is not on a page as a condition, but as what it is.
_SHARED, _SHOWN = "[shared causes](../shared-causes.md): who asks how much", "a panel"
_KINDS = {
    "node": "a node",
    "switch": "a switch",
    "storage": "a storage server",
    "service": "a service that jobs need",
    "power": "a power unit",
    "fabric": "a switch, or the node at the other end of the cable: the description of the port says which",
}
#: By the table of the crosswalk: whose exporter it is, the file of targets that scrapes it, and what is to be known.
_TOLD: Mapping[str, tuple[str, str, str]] = {
    "blackbox": ("blackbox_exporter", "blackbox_exporter", "Name service, registry, licences: probed from outside."),
    "dcgm": (
        "dcgm-exporter",
        "dcgm-exporter",
        "Where agents run, they read the same from the driver: then it is needed for panels that are there already.",
    ),
    "gnmi": (
        "gNMI (gnmic, Telegraf, OpenConfig)",
        "other",
        "Let the collector of your switches (gnmic: its `prometheus` output) offer them, or send them by OTLP.",
    ),
    "gpfs": (
        "IBM Storage Scale (gpfs_exporter)",
        "other",
        "Scrape the servers of the storage cluster, not each client.",
    ),
    "infiniband": ("infiniband_exporter", "infiniband_exporter", "One for the whole fabric."),
    "lustre": (
        "Lustre (lustre_exporter and its heirs)",
        "lustre",
        "With `jobid_var` set on clients, servers count for each job: the server's count names a noisy one.",
    ),
    "node_exporter": (
        "node_exporter",
        "node_exporter",
        "For nodes without an agent, as storage servers and gateways; where an agent runs, it sees the same sooner.",
    ),
    "object_store": (
        "Object stores (MinIO, Ceph)",
        "other",
        "MinIO: metrics v2. Ceph: the manager's module `prometheus`.",
    ),
    "power": ("Power units (snmp_exporter)", "snmp_exporter", "Rack PDUs (PowerNet-MIB) and UPS (RFC 1628)."),
    "snmp": (
        "Switches by SNMP (snmp_exporter, Telegraf)",
        "snmp_exporter",
        "The module `if_mib` of the `snmp.yml` that comes with snmp_exporter. Without one: "
        "`deploy/collector/snmp.yaml`, by which the intake asks switches itself.",
    ),
    "ufm": ("UFM telemetry", "ufm", "One endpoint for the whole fabric, its path as your UFM has it."),
}


def pages() -> Mapping[str, str]:
    """Each page by its file's name, with the index among them."""
    rules = load_rules()
    made = {f"{name}.md": _page(name, read_toml(_CROSSWALK, f"{name}.toml"), rules) for name in _names()}
    return {**made, INDEX: _index()}


def _names() -> Iterator[str]:
    return (file.removesuffix(".toml") for file in sources())


def _told(name: str) -> tuple[str, str, str]:
    return _TOLD.get(name, (name, "other", ""))


def _index() -> str:
    rows = [(f"[{_told(name)[0]}]({name}.md)", code(f"targets/{_told(name)[1]}.yaml")) for name in _names()]
    return (
        "\n\n".join(
            [
                "# Exporters of other people",
                "Made by `make reference` from the tables of `diagnosis/crosswalk`; a test holds it current. How their "
                "metrics come in: [ways in](../ways-in.md). What a condition is: [conditions](../conditions.md).",
                table(["Exporter", "Whom to scrape, in `deploy/collector`"], rows),
                section(
                    "Which node, switch or server",
                    "A point is about whoever the first of these names, looked up among the names and the GPUs that "
                    "agents have told. `label` is of the point, `resource` of who sent it; port and scheme are cut; "
                    "127.0.0.1 and the like name nobody. A point that names nobody is counted "
                    "(`whichrank_process_nameless_points_total`) and left out.",
                    table(["About", "In this order"], _host_rows()),
                ),
            ]
        )
        + "\n"
    )


def _host_rows() -> list[tuple[str, str]]:
    order = read_toml(_CROSSWALK, "hosts.toml")
    others = "everything else: nodes, servers, power units"
    kinds = [(others if name == "node" else kind, name) for name, kind in _KINDS.items() if name in order]
    return [
        ("all, where the GPU is known", codes(f"label:{label}" for label in order["gpu"])),
        *((kind, codes(order[name])) for kind, name in kinds),
        ("all, where none of these says anything", codes(order["own"])),
    ]


def _page(name: str, content: Mapping[str, Any], rules: Rules) -> str:
    title, targets, words = _told(name)
    source = content["source"]
    device = source.get("device")
    facts = [
        words,
        f"Scraped by the intake: copy `deploy/collector/targets/{targets}.yaml.example` ([how](../ways-in.md)).",
        f"It is about {_KINDS[source['entity']]} ([whose name](index.md)).",
        f"The device is the first of {codes(device)} whose labels are there." if device else "",
    ]
    ways = "It is known by these names, and as other collectors spell them (prefixes, paths, with or without `_total`)."
    rows = [_row(name, entry, rules) for entry in content["rule"]]
    return (
        "\n\n".join(
            [
                f"# {title}",
                "Made by `make reference` from the crosswalk; a test holds it current.",
                "\n".join(f"- {fact}" for fact in facts if fact),
                ways,
                table(["Metric of the exporter", "Becomes", "Used for"], rows),
            ]
        )
        + "\n"
    )


def _row(name: str, entry: Mapping[str, Any], rules: Rules) -> tuple[str, str, str]:
    (rule, *_) = _rules_of(name, entry)
    which = ", ".join(f"{key}={value}" for key, value in rule.attributes.items())
    ours = code(rule.metric) + (f" ({which})" if which else "")
    return codes(entry["names"]), ours, "; ".join(used_for(rule, rules))


def _rules_of(name: str, entry: Mapping[str, Any]) -> list[CrosswalkRule]:
    """The rules that the table was read to, by which an entry's names are found."""
    spelt = {_plain(each) for each in entry["names"]}
    return [rule for key, rule in sources()[f"{name}.toml"].rules.items() if _plain(key) in spelt]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def used_for(rule: CrosswalkRule, rules: Rules) -> list[str]:
    """In Markdown, for what points of this rule are used: conditions, shared causes, or only panels."""
    kinds = ("switch", "node") if rule.entity == "fabric" else (rule.entity,)
    conditions: dict[str, None] = {}
    for kind in kinds:
        of_kind = rules.of_entity(kind)
        asked: list[MetricRule] = [each for each in of_kind.metrics.get(rule.metric, ()) if _is_asked(rule, each)]
        for found in (asked, of_kind.limits.get(rule.metric, ()), of_kind.counts.get(rule.metric, ())):
            conditions |= dict.fromkeys(each.condition for each in found)
    told = [codes(conditions)] if conditions else []
    if rule.metric in load_load_rules():
        told.append(_SHARED)
    return told or [_SHOWN]


def _is_asked(rule: CrosswalkRule, asked: MetricRule) -> bool:
    """Whether its points may carry what the rule of a condition looks for."""
    told = {name: rule.attributes.get(name, "") for name in asked.where}
    return all("{" in told[name] or told[name] == value for name, value in asked.where.items())


def write_pages() -> None:
    """Writes docs/exporters anew; pages of exporters that are no more go."""
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def stale_pages() -> list[str]:
    """Names of pages that are not what the code makes, or are missing, or are of no exporter."""
    made = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
