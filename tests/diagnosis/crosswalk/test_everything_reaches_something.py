"""Every rule of the crosswalk is followed to a condition, a panel or a shared cause; else it is for nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from whichrank.diagnosis.crosswalk.rules import CrosswalkRule, sources
from whichrank.grafana.boards import all_dashboards
from whichrank.processors.cluster.shared.rules import load_shared_rules
from whichrank.processors.entity.condition_rules import Rules
from whichrank.processors.entity.loads import load_load_rules
from whichrank.processors.entity.rules import load_rules

RULES = [(file, rule, names) for file, source in sources().items() for rule, names in source.written]
#: Names that panels ask for, as they stand there.
PANELS = frozenset(
    re.findall(r'__name__=~"([^"]+)"', json.dumps([board.build() for board in all_dashboards()]).replace('\\"', '"'))
)


def kinds_of(rule: CrosswalkRule) -> Sequence[str]:
    """What its points may be about."""
    return ("switch", "node") if rule.entity == "fabric" else (rule.entity,)


def makes_a_condition(rule: CrosswalkRule, rules: Rules) -> bool:
    """Of itself, or as what others are a share of, are counted by, or hold only with."""
    for kind in kinds_of(rule):
        of_kind = rules.of_entity(kind)
        if rule.metric in of_kind.limits or rule.metric in of_kind.counts:
            return True
        for each in of_kind.metrics.get(rule.metric, ()):
            told = {name: rule.attributes.get(name, "") for name in each.where}
            if all("{" in told[name] or told[name] == value for name, value in each.where.items()):
                return True
    return False


def reached(rule: CrosswalkRule, names: str) -> list[str]:
    found = []
    if makes_a_condition(rule, load_rules()):
        found.append("condition")
    if rule.metric in load_load_rules():
        found.append("shared cause")
    if names in PANELS:
        found.append("panel")
    return found


def test_every_rule_reaches_a_condition_a_panel_or_a_shared_cause() -> None:
    lost = [f"{file}: {names} ({rule.metric})" for file, rule, names in RULES if not reached(rule, names)]
    assert lost == [], f"{len(RULES) - len(lost)} of {len(RULES)} reach something"
    assert len(RULES) > 200


def test_servers_and_switches_reach_conditions_and_not_only_pictures() -> None:
    least = {"lustre": 10, "ufm": 9, "gnmi": 12, "snmp": 15, "infiniband": 8, "object_store": 20, "gpfs": 5, "power": 3,
             "blackbox": 2, "dcgm": 7, "node_exporter": 43}  # fmt: skip
    rules = load_rules()
    count = dict.fromkeys(least, 0)
    for file, rule, _ in RULES:
        count[file.removesuffix(".toml")] += makes_a_condition(rule, rules)
    assert {file: (n, least[file]) for file, n in count.items() if n < least[file]} == {}


def test_a_condition_of_what_several_jobs_use_is_a_sign_for_some_shared_cause() -> None:
    kinds = {rule.entity for rules in load_rules().metrics.values() for rule in rules} - {"node"}
    signs = frozenset().union(*(rule.signs for rule in load_shared_rules().values()))
    assert kinds == {"switch", "storage", "service", "power"} <= signs


def test_a_rule_that_reaches_nothing_is_found() -> None:
    """The test can fail: a metric that nobody asks for, and one that is asked of another kind of entity alone."""
    (lustre,) = [rule for _, rule, names in RULES if "lustre_osp_active" in names]
    assert reached(lustre, "") == ["condition"]
    for changed in ({"metric": "whichrank.nobody.asks"}, {"entity": "service"}):
        fields = {name: getattr(lustre, name) for name in CrosswalkRule.__slots__} | changed
        assert reached(CrosswalkRule(**fields), "") == []


def test_every_way_of_writing_a_name_is_one_by_which_it_is_found() -> None:
    for names, written in (
        ("interfaces_interface_state_counters_in_octets", "gnmic_ports_interfaces_interface_state_counters_in_octets"),
        ("ifHCInOctets", "interface_ifHCInOctets_total"),
        ("PortXmitWaitExtended", "infiniband_port_xmit_wait_extended"),
        ("node_network_receive_bytes_total", "node_network_receive_bytes_total"),
    ):
        found = [text for source in sources().values() for _, text in source.written if re.fullmatch(text, written)]
        assert len(found) == 1, (names, found)
