"""Facts are fields, sentences are output: no code of ours matches against words that code of ours has written.

A sentence could not be improved otherwise without changing a verdict. What rows say to programs is their ``fact``
(``telemetry/evidence_facts.py``); ``processors/older_sentences.py`` alone reads what releases without facts have said.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sentence_flow import Place, looked_for, matches, readers, shared_literals

ROOT = Path(__file__).parents[1]
JUDGES = ("processors", "diagnosis")
MIGRATION = "processors/older_sentences.py"
#: What only looks like it.
NO_SENTENCE = {
    ("processors/cluster/shared/joint.py", "'jobs' in verdict.words"): "a mapping of what a template may name",
    ("commands/incident_text/incident_view.py", "_PORT.sub(']', text)"): "lines that differ in a port are drawn once",
    ("commands/incident_text/incident_view.py", "text.replace(EMOJI_SELECTOR, '')"): "how wide a terminal draws it",
}
#: Who reads a field with a sentence without taking it apart: to put it into another one, or a rule's template.
PUTS_IT_ON = {
    "diagnosis/counters/port_conditions.py": "copies it to and from JSON",
    "diagnosis/counters/rules.py": "a template of rules.toml",
    "diagnosis/counters/port_watch.py": "a template of rules.toml",
    "diagnosis/flight_recorder/analysis.py": "the summary says it again",
    "diagnosis/flight_recorder/dump_suspects.py": "one reason after another",
    "diagnosis/health_checks/point_limits.py": "a name from node_limits",
    "processors/cluster/case.py": "a revision is news where it says something else of somebody",
    "processors/cluster/joining.py": "the advice repeats what was announced",
    "processors/job/findings/testimonies.py": "what a witness saw, put into a row of evidence",
    "processors/job/hang/dump_verdicts.py": "what the analysis of dumps says, put into a testimony",
    "processors/finding_document.py": "copies it to and from JSON",
    "processors/entity/metrics.py": "a template of node_limits",
    "processors/entity/rules.py": "a template of node_limits",
}
#: What other programs write as well, of the words that we do.
ALSO_FOREIGN = ("exit code",)


def test_nothing_takes_a_sentence_apart() -> None:
    found = matches(ROOT, (*JUDGES, "commands"))
    assert [
        str(place) for place in found if place.file != MIGRATION and (place.file, place.code) not in NO_SENTENCE
    ] == []
    assert {(place.file, place.code) for place in found} >= set(NO_SENTENCE), "an exception that nobody needs"


def test_nobody_reads_a_sentence_who_is_not_known_to() -> None:
    found = {place.file for place in readers(ROOT, JUDGES)}
    assert found - {MIGRATION} == set(PUTS_IT_ON)


def test_nothing_is_looked_for_that_our_sentences_say() -> None:
    """In code and in rules: lines of kernels and jobs are other programs', so what reads those is left out."""
    found = [place for place in shared_literals(ROOT, ("processors",), JUDGES) if place.file != MIGRATION]
    assert [str(place) for place in found if not _is_foreign(place)] == []
    assert any(map(_is_foreign, found)), "an exception that nobody needs"


def _is_foreign(place: Place) -> bool:
    return any(words in place.code for words in ALSO_FOREIGN)


# --- that these tests can fail ----------------------------------------------------------------------------------------
_WRITER = """
def describe_ending(rank, message):
    words = f"rank {rank} was ended by {message}"
    return words + ", before the others failed"

def row(rank, message):
    return {"signal": "rank.exit", "source": f"rank {rank}", "shows": describe_ending(rank, message)}
"""
TAKES_IT_APART = {
    "a pattern": """
import re

def f(row):
    return re.search("ended by", row["shows"])
""",
    "a compiled pattern": """
def f(row, pattern):
    text = str(row.get("shows") or "").lower()
    return pattern.search(text)
""",
    "a literal": """
def f(row):
    return "failed" in row["because"]
""",
    "its beginning": """
def f(rows):
    return [row for row in rows if row["looks_guilty"].startswith("stands")]
""",
    "a cut": """
def f(row):
    return (row.get("shows") or "").rsplit(" at ", 1)[0]
""",
    "a source": """
def f(row):
    return row["source"].removeprefix("node ")
""",
    "a name": """
def f(condition):
    return not str(condition["name"]).startswith("xid_")
""",
    "a call's result": """
from ..job.writer import describe_ending

def f(rank):
    return describe_ending(rank, "x").removeprefix("rank")
""",
    "over a function": """
def said(row):
    return "; ".join([row["shows"]])

def f(row, pattern):
    return pattern.search(said(row))
""",
    "over a parameter": """
def fits(words, pattern):
    return pattern.match(words)

def f(row):
    return fits(row["shows"], None)
""",
    "over a field": """
def make(row):
    return Trouble(error=row["shows"])

def f(trouble, pattern):
    return pattern.search(trouble.error)
""",
    "what a pattern found": """
def f(row, pattern):
    if found := pattern.search(row["shows"]):
        return found["error"].split(":")
""",
    "any of them": """
def f(rows, words):
    said = {row["shows"] for row in rows}
    return any(each.startswith(words) for each in said)
""",
}


def tree(tmp_path: Path, reader: str, rules: str = "") -> Path:
    for file, content in {
        "processors/job/writer.py": _WRITER,
        "processors/cluster/reader.py": reader,
        "processors/cluster/rules.toml": rules,
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    return tmp_path


@pytest.mark.parametrize("reader", TAKES_IT_APART.values(), ids=TAKES_IT_APART)
def test_it_is_seen(tmp_path: Path, reader: str) -> None:
    assert {place.file for place in matches(tree(tmp_path, reader), ("processors",))} == {
        "processors/cluster/reader.py"
    }


@pytest.mark.parametrize(
    "reader",
    [
        "def f(row):\n    return f\"wait: {row['shows']}\"[:300]",
        "def f(fact, pattern):\n    return pattern.search(fact.message)",
        'def f(condition):\n    return condition["source"] == "kernel"',
        'def f(case):\n    return case.find(case.key) or case.body["kind"].startswith("rank")',
    ],
)
def test_what_is_none_is_not(tmp_path: Path, reader: str) -> None:
    assert matches(tree(tmp_path, reader), ("processors",)) == []


@pytest.mark.parametrize("rule", ["match = ['was ended by']", "errors = ['nccl', 'before the (?:others|rest) failed']"])
def test_a_rule_that_matches_our_prose_is_found(tmp_path: Path, rule: str) -> None:
    root = tree(tmp_path, 'def f(text):\n    return "connection reset" in text', rule)
    (place,) = shared_literals(root, ("processors",), ("processors",))
    assert place.file == "processors/cluster/rules.toml"
    assert len(list(looked_for(root, ("processors",)))) == 2
