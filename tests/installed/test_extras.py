"""Each command in an environment with each extra alone: it does what is promised, or says in one line what it lacks."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.docs_commands.room import write_files
from tests.installed.environments import Environment, Said
from tests.installed.promises import PROMISES, REFUSAL, Promise
from whichrank.commands.support.evaluation_commands import COMMANDS as EVALUATION_COMMANDS

#: Without torch: with it, an environment takes gigabytes, and it brings no command but the demo (``test_torch``).
ALONE = ("", "agent", "processors", "grafana", "all", "evaluation")
SIMULATE = "whichrank simulate --scenario gpu_off_the_bus --ranks 8 --seed 3 --out sim"
#: Prints the program's commands, from the installed package.
COMMANDS = """
from typer.main import get_command
from whichrank.commands.main import app

def walk(command, words):
    if not hasattr(command, "commands"):
        print(" ".join(words))
    for name in getattr(command, "commands", ()):
        walk(command.commands[name], [*words, name])

walk(get_command(app), [])
"""
#: As a rank does it where nobody watches: there is no folder for rings.
HARMLESS = """
import whichrank
whichrank.init()
with whichrank.phase("data"):
    pass
whichrank.step(loss=1.0)
print("trained", whichrank.__file__)
"""
Extra = Callable[[str], Environment]


@pytest.fixture(scope="module")
def room(with_extra: Extra, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run, and files as machines leave them."""
    folder = tmp_path_factory.mktemp("room")
    write_files(folder)
    said = with_extra("evaluation").run(SIMULATE, folder)
    assert said.status == 0, said.output
    return folder


def asked_with(extra: str) -> dict[str, Promise]:
    """Every command without extras and with all; with an extra alone those it is for, and one of each other extra's."""
    if extra in ("", "all"):
        return PROMISES
    one_of_each = {promise.extra: name for name, promise in reversed(PROMISES.items())}
    return {name: each for name, each in PROMISES.items() if each.extra == extra or name in one_of_each.values()}


def tried(environment: Environment, promise: Promise, room: Path, folder: Path) -> Said:
    """In a copy of the room: commands write there."""
    shutil.copytree(room, folder)
    last = (folder / "sim" / "incidents.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    words = re.sub(r"\bID\b", str(json.loads(last)["id"]), promise.words)
    state = {f"WHICHRANK_{name}_STATE": str(folder / name.lower()) for name in ("RESPOND", "NOTIFY", "ANNOTATE")}
    return environment.run(f"{promise.before}whichrank {words}", folder, **state)


def wrong_with(said: Said, promise: Promise, extra: str) -> str:
    """Empty if it did what was promised, or says which extra it needs where it was promised nothing."""
    refusals = [extra for extra, _ in REFUSAL.findall(said.output) if extra != "torch"]
    if "Traceback" in said.output or "ModuleNotFoundError" in said.output:
        return f"not in one line: {said.output[-500:]}"
    # What judges whichrank is no part of "all".
    if extra != promise.extra and (extra != "all" or promise.extra == "evaluation"):
        # Of annotate only what talks to a Grafana may be missing.
        if refusals:
            right = {promise.extra, "grafana"} if promise.extra == "all" else {promise.extra}
            return "" if set(refusals) <= right else f"names {refusals}, but {promise.extra} is enough"
        if extra == "":
            return f"does not say what it lacks: {said.output[-500:]}"
    elif refusals:
        return f"should need nothing more: {said.output[-500:]}"
    if said.status not in promise.status or promise.says not in said.output:
        return f"ended with {said.status}: {said.output[-500:]}"
    return ""


def test_each_command_has_a_promise(with_extra: Extra, tmp_path: Path) -> None:
    (tmp_path / "commands.py").write_text(COMMANDS)
    said = with_extra("all").run("python commands.py", tmp_path)
    named = set(said.output.splitlines()) | set(EVALUATION_COMMANDS)
    assert "incidents show" in named
    assert (sorted(named - set(PROMISES)), sorted(set(PROMISES) - named - {"respond", "check"})) == ([], [])


@pytest.mark.parametrize("extra", ALONE)
def test_each_command_works_or_says_what_it_lacks(extra: str, with_extra: Extra, room: Path, tmp_path: Path) -> None:
    environment = with_extra(extra)
    with ThreadPoolExecutor(2) as both_cores:
        asked = {
            name: both_cores.submit(tried, environment, promise, room, tmp_path / name.replace(" ", "-"))
            for name, promise in asked_with(extra).items()
        }
    wrong = {name: wrong_with(answer.result(), PROMISES[name], extra) for name, answer in asked.items()}
    assert {name: what for name, what in wrong.items() if what} == {}


@pytest.mark.parametrize("extra", ALONE)
def test_a_script_imports_it_and_is_not_disturbed(extra: str, with_extra: Extra, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HARMLESS)
    environment = with_extra(extra)
    said = environment.run("python train.py", tmp_path)
    assert (said.status, said.output.splitlines()[-1].split()[0]) == (0, "trained"), said.output
    assert str(environment.folder) in said.output  # the wheel, and not the checkout


def test_the_base_alone_says_what_the_program_needs(with_extra: Extra, tmp_path: Path) -> None:
    for words in ("", "--help", "run --help"):
        said = with_extra("").run(f"whichrank {words}", tmp_path)
        assert (said.status, said.output.count("\n")) == (2, 1)
        assert [extra for extra, _ in REFUSAL.findall(said.output)] == ["agent"]


def test_all_modules_can_be_imported_with_everything(with_extra: Extra, tmp_path: Path) -> None:
    """What a module reads when it is imported lies beside it, in the wheel too."""
    script = (
        "import importlib, pkgutil, whichrank\n"
        "skip = ('whichrank.grafana.generate', 'whichrank.grafana.provisioned', 'whichrank.evaluation.reference')\n"
        "for found in pkgutil.walk_packages(whichrank.__path__, 'whichrank.'):\n"
        "    if 'instrumentation' in found.name or found.name.startswith(skip) or found.name.endswith('__main__'):\n"
        "        continue\n"
        "    try:\n"
        "        importlib.import_module(found.name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        if (error.name or '').split('.')[0] not in ('torch', 'confluent_kafka', 'pyarrow', 'pyflink'):\n"
        "            print(found.name, error)\n"
    )
    (tmp_path / "imports.py").write_text(script)
    said = with_extra("all").run("python imports.py", tmp_path)
    assert (said.status, said.output) == (0, "")
