"""Every command of the documents is tried by somebody or is on the list of exceptions, and every flag in it exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs_commands.__main__ import main
from tests.docs_commands.blocks import blocks, inline_code
from tests.docs_commands.collect import DOCUMENTS, ROOT, all_commands, commands_of, is_of_whichrank
from tests.docs_commands.coverage import RULES, Elsewhere, Here, InClone, InStack, NotHere, Why, cover_of
from tests.docs_commands.parse import words_of, wrong_with

COMMANDS = all_commands()
#: Reasons that the machine gives; for the others something is executed all the same.
OF_MACHINES = (Why.IMAGE_REGISTRY, Why.GPU, Why.SLURM, Why.KUBERNETES, Why.SYSTEMD)
STACK_TEST = ROOT / "tests" / "stack" / "test_docs_commands.py"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_is_tried_or_excused(document: str) -> None:
    untried = [
        f"{each.place}: {each.text}" for each in COMMANDS if each.document == document and not cover_of(each.text)
    ]
    assert untried == [], "give each a row in tests/docs_commands/coverage.py"


def test_every_row_is_of_a_command() -> None:
    stale = [pattern for pattern, _ in RULES if not any(re.fullmatch(pattern, each.text) for each in COMMANDS)]
    assert stale == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_program_takes_every_command_line(document: str) -> None:
    wrong = [
        f"{each.place}: {each.text}: {problem}"
        for each in COMMANDS
        if each.document == document and is_of_whichrank(each)
        if (problem := wrong_with(each.text, is_named=each.is_named))
    ]
    assert wrong == []


def test_what_is_tried_elsewhere_is_there() -> None:
    for pattern, cover in RULES:
        if isinstance(cover, Elsewhere):
            assert lacking(cover) == [], pattern


def lacking(cover: Elsewhere) -> list[str]:
    """The test, or words of the command in its file, that are not there."""
    name, _, test = cover.test.partition("::")
    path = ROOT / name
    if not path.is_file():
        return [name]
    text = path.read_text(encoding="utf-8")
    typed = (ROOT / cover.by).read_text(encoding="utf-8") if cover.by else text
    missing = [word for word in cover.words if word not in typed]
    if test and test not in {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}:
        missing.append(test)
    return missing


def test_a_test_or_a_word_that_is_gone_is_told() -> None:
    here = str(Path(__file__).relative_to(ROOT))
    assert lacking(Elsewhere(f"{here}::test_every_row_is_of_a_command", ("Elsewhere",))) == []
    word, test = "-".join(("--no", "such", "word")), "_".join(("test", "gone"))
    assert lacking(Elsewhere(f"{here}::{test}", (word,))) == [word, test]
    assert lacking(Elsewhere("tests/gone.py", ())) == ["tests/gone.py"]


def test_what_is_not_executed_has_a_part_that_is_or_a_machine_that_cannot() -> None:
    for pattern, cover in RULES:
        if isinstance(cover, NotHere) and cover.why not in OF_MACHINES:
            assert cover.runs or pattern.startswith("pip install"), pattern


def test_there_is_a_test_for_what_needs_a_broker() -> None:
    assert any(isinstance(cover_of(each.text), InStack) for each in COMMANDS)
    assert "InStack" in STACK_TEST.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("whichrank incidents show ID --form DIR", "--form"),
        ("whichrank incident list", "no command 'incident'"),
        ("whichrank incidents lst", "no command 'lst'"),
        ("whichrank evidence --node NODE", "rank"),
        ("whichrank run --level loud -- torchrun train.py", "loud"),
        ("srun whichrank topics --kafka", "argument"),
        (".venv/bin/whichrank respond --kafka HOST:PORT --hook slurm", "--hook"),
    ],
)
def test_what_the_program_does_not_take_is_told(text: str, said: str) -> None:
    assert said in wrong_with(text)


@pytest.mark.parametrize(
    "text",
    [
        "whichrank run -- torchrun --no-such-flag train.py",
        "whichrank run --help",
        "X=1 whichrank evidence RANK --node NODE [--action history]",
    ],
)
def test_what_it_takes_is_fine(text: str) -> None:
    assert wrong_with(text) == ""


def test_only_a_name_may_lack_what_it_needs() -> None:
    assert wrong_with("whichrank dlq show", is_named=True) == ""
    assert wrong_with("whichrank dlq show") != ""
    assert words_of("whichrank evidence RANK")[-1] == "3"


def test_commands_are_found_in_blocks_and_in_running_text() -> None:
    text = """# Title
Type `whichrank incidents list`, never `whichrank.step()` or `makes`; and `make
lint`.
```sh
cp a b   # and look
whichrank run -- \\
    torchrun train.py; make tie
```
```
whichrank check  # in a block without a language
 who  rank 3
```
```python
make = whichrank
```
```sh
#!/bin/sh
# whichrank is called below
found=$(whichrank check --mode epilog 2>&1)
```
"""
    found = [(each.text, each.line, each.is_named) for each in commands_of("x.md", text)]
    assert found == [
        ("cp a b", 5, False),
        ("whichrank run -- torchrun train.py", 6, False),
        ("make tie", 6, False),
        ("whichrank check", 10, False),
        ("whichrank check --mode epilog", 19, False),
        ("whichrank incidents list", 2, True),
        ("make lint", 2, True),
    ]


def test_a_block_that_does_not_end_is_told() -> None:
    with pytest.raises(ValueError, match="line 2"):
        list(blocks("```sh\nmake\n"))
    assert list(inline_code("`a`\n```\n`b`\n```\n")) == [(1, "a")]


def test_there_are_many() -> None:
    kinds = {type(cover_of(each.text)) for each in COMMANDS}
    assert kinds == {Here, InClone, InStack, Elsewhere, NotHere}
    assert len({each.text for each in COMMANDS}) > 100


def test_the_program_prints_the_exceptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    told = capsys.readouterr().out
    assert "Slurm" in told
    assert "[password=NEW]" in told
