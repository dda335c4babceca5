"""Results of checks as conditions: whichrank's own and a site's, from the program to the entity operator."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.processors.cluster.conftest import START_S
from tests.processors.entity.node import Node
from whichrank.agents.collectors.base.collector import Timestamps
from whichrank.agents.collectors.checks.check_results import (
    CheckResult,
    condition_name,
    events_of,
    read_document,
    read_site_answer,
)
from whichrank.agents.collectors.checks.checks_collector import ChecksCollector
from whichrank.agents.collectors.checks.site_programs import run_site_check
from whichrank.diagnosis.health_checks.outcome import CheckStatus
from whichrank.diagnosis.health_checks.site_checks import BadSiteChecks, SiteCheck, read_site_checks
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.vocabulary import Action


def moment(seconds: float) -> Timestamps:
    return Timestamps(wall_ns=int(seconds * 1e9), mono_ns=int(seconds * 1e9))


def lost(device: str = "GPU 5", status: CheckStatus = CheckStatus.CRITICAL) -> CheckResult:
    return CheckResult(family="gpu", check="lost", status=status, reason="does not answer", device=device)


def tell(node: Node, results: Collection[CheckResult], looked: Collection[str], at: float) -> None:
    for each in events_of(results, looked, moment(START_S + at), before="prolog"):
        who = Identity(cluster="local", node=node.name)
        node.take(Event(name=each.name, identity=who, time_ns=each.time_ns, attributes=each.attributes))


def standing(node: Node) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for finding in node.findings:
        condition = finding.body["condition"]
        found[condition["name"]] = condition
    return {name: condition for name, condition in found.items() if condition["until"] is None}


def test_what_is_found_begins_goes_on_and_is_over() -> None:
    node = Node()
    tell(node, [lost()], ["check.gpu", "check.network"], 0.0)
    condition = standing(node)["check_gpu_lost"]
    assert (condition["severity"], condition["domain"], condition["source"]) == ("error", "hardware", "check.gpu")
    assert condition["explains"]
    told = len(node.findings)
    tell(node, [lost()], ["check.gpu"], 300.0)
    assert len(node.findings) == told  # found again: nothing new
    assert standing(node)["check_gpu_lost"]["since"] == condition["since"]
    tell(node, [], ["check.network"], 600.0)
    assert "check_gpu_lost" in standing(node)  # another family says nothing of it
    tell(node, [], ["check.gpu"], 900.0)
    assert standing(node) == {}


def test_what_could_not_be_seen_ends_nothing() -> None:
    node = Node()
    tell(node, [lost()], ["check.gpu"], 0.0)
    tell(node, [lost("", CheckStatus.UNKNOWN)], ["check.gpu"], 300.0)
    assert "check_gpu_lost" in standing(node)


def test_a_warning_and_an_unknown_domain_are_told_and_explain_nothing() -> None:
    node = Node()
    odd = CheckResult(family="site", check="odd", status=CheckStatus.CRITICAL, reason="odd", domain="service")
    tell(node, [lost(status=CheckStatus.WARN), odd], ["check.gpu", "site.odd"], 0.0)
    assert {name: list(c["explains"]) for name, c in standing(node).items()} == {"check_gpu_lost": [], "site_odd": []}  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (0, b"fine\n", (CheckStatus.OK, "fine")),
        (1, b"", (CheckStatus.WARN, "raid ended with status 1")),
        (2, b"degraded\nmore", (CheckStatus.CRITICAL, "degraded")),
        (3, b"?", (CheckStatus.UNKNOWN, "?")),
        (139, b"\x1b[2J\xff", (CheckStatus.UNKNOWN, " [2J\ufffd")),
        (0, b'{"status": "critical", "reason": "disk 3"}', (CheckStatus.CRITICAL, "disk 3")),
        (2, b'{"status": 7}', (CheckStatus.CRITICAL, "raid says CRITICAL")),
        (2, b"[" * 5000, (CheckStatus.CRITICAL, "[" * 400)),
    ],
)
def test_what_a_sites_program_says(status: int, said: bytes, expected: tuple[CheckStatus, str]) -> None:
    (found,) = read_site_answer("raid", status, said)
    assert (found.status, found.reason) == expected


def test_a_sites_program_may_say_several_things_and_what_to_do() -> None:
    said = json.dumps([{"status": "WARN", "device": "sda"}, {"device": "sdb", "action": "drain_after_job"}, 5]).encode()
    first, second = read_site_answer("raid", 2, said, domain="storage")
    assert (first.status, first.device, first.domain) == (CheckStatus.WARN, "sda", "storage")
    assert (second.status, second.action) == (CheckStatus.CRITICAL, Action.DRAIN_AFTER_JOB)


def test_programs_that_hang_or_are_not_there_could_not_see() -> None:
    hangs = SiteCheck(name="hangs", command=("/bin/sh", "-c", "sleep 60"), timeout_s=1.0)
    absent = SiteCheck(name="absent", command=("/nowhere/at-all",))
    for check in (hangs, absent):
        (found,) = run_site_check(check)
        assert found.status is CheckStatus.UNKNOWN


def test_the_file_of_a_sites_checks(tmp_path: Path) -> None:
    file = tmp_path / "checks.toml"
    file.write_text('[[check]]\nname = "raid"\ncommand = ["/bin/true"]\nperiod_s = 60\ndomain = "storage"\n')
    file.chmod(0o644)
    expected = SiteCheck(name="raid", command=("/bin/true",), period_s=60.0, domain="storage")
    assert read_site_checks(str(file)) == [expected]
    for wrong in (
        '[[check]]\nname = "raid"\ncommand = ["true"]',
        '[[check]]\nname = "Raid!"\ncommand = ["/bin/true"]',
        '[[check]]\nname = "raid"\ncommand = "/bin/true"',
        '[[check]]\nname = "raid"\ncommand = ["/bin/true"]\nperiod_s = 0',
        '[[check]]\nname = "raid"\ncommand = ["/bin/true"]\nperiods = 5',
        "[other]\n",
    ):
        file.write_text(wrong)
        with pytest.raises(BadSiteChecks):
            read_site_checks(str(file))
    file.write_text("")
    file.chmod(0o666)
    with pytest.raises(BadSiteChecks, match="go-w"):
        read_site_checks(str(file))


def test_own_checks_run_only_while_no_job_is_here_and_a_sites_always() -> None:
    ranks: list[int] = [1]
    document = {"mode": "epilog", "families": {"host": "WARN"}, "findings": [
        {"family": "host", "check": "clock", "status": "WARN", "reason": "nobody keeps it"}
    ]}  # fmt: skip
    command = [sys.executable, "-c", f"print({json.dumps(document)!r})"]
    site = [SiteCheck(name="raid", command=("/bin/sh", "-c", "echo bad; exit 2"), period_s=100.0)]
    collector = ChecksCollector(site, command, 60.0, lambda: ranks)

    def told(at_s: float) -> list[str]:
        found = collector.collect(moment(at_s))
        assert not found.problems
        return [str(each.attributes["event"]) for each in found.happenings if "event" in each.attributes]

    assert told(1000.0) == ["site_raid"]
    assert told(1050.0) == []
    ranks.clear()
    assert told(1110.0) == ["site_raid"]
    assert told(1171.0) == ["check_host_clock"]
    assert told(1175.0) == []
    assert told(1232.0) == ["site_raid", "check_host_clock"]


def test_a_document_that_is_none_is_a_problem_and_no_condition() -> None:
    collector = ChecksCollector([], [sys.executable, "-c", "print('no')"], 1.0, list)
    collector.collect(moment(10.0))
    found = collector.collect(moment(20.0))
    assert not found.happenings
    assert found.problems


def test_names_are_words() -> None:
    assert condition_name("gpu", "lost") == "check_gpu_lost"
    assert condition_name("site", "raid.1-a") == "site_raid_1_a"
    results, looked, mode = read_document(
        '{"mode": "prolog", "families": {"gpu": "OK", "site": "OK"}, "findings": '
        '[{"family": "site", "check": "raid", "status": "OK", "reason": ""}]}'
    )
    assert (looked, mode, len(results)) == (["check.gpu", "site.raid"], "prolog", 1)
