"""The README's own ``train.py``, where the wheel and torch were installed and nothing else is: one incident, and what
reads the run afterwards.

On the oldest Python with the oldest torch, and on the newest of both that can be had. A Python that this machine lacks
is not fetched: its test says so and is not run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.installed.environments import OLDEST, Environment, Said, make_environment, pythons
from tests.installed.promises import REFUSAL
from tests.newcomer import guilty, script

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
#: As the README has it, with the programs of the environment.
COMMAND = "whichrank run --out run -- torchrun --nproc-per-node=4 train.py"
BY_HAND = """
import whichrank

whichrank.init()
"""
VERSIONS = "python -c 'import sys, torch; print(sys.version.split()[0], torch.__version__)'"
PINS = ("oldest", "newest")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnJob:
    """The README's job, watched. versions: of Python and torch, as that environment says.

    alone: the same job without its fault, where only torch's extra was. refused: the README's command there.
    """

    environment: Environment
    folder: Path
    alone: Said
    refused: Said
    said: Said
    versions: tuple[str, str]

    @property
    def incidents(self) -> dict[str, dict[str, Any]]:
        """Their last revisions."""
        lines = (self.folder / "run" / "incidents.jsonl").read_text(encoding="utf-8").splitlines()
        return {document["id"]: document for document in map(json.loads, lines)}


@pytest.fixture(scope="module", params=PINS)
def own_job(
    request: pytest.FixtureRequest, place: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnJob]:
    """Begun with torch's extra alone, then made what a training environment is, by what the refusal says."""
    pins, here = str(request.param), pythons()
    # Where there is no 3.10, torch 2.6 is still worth it; ``test_the_oldest_python_is_here`` says what was not run.
    python = here[min(here) if pins == "oldest" else max(here)]
    environment = make_environment(place / f"torch-{pins}", python=python, wheel=wheel, extras=["torch"], pins=pins)
    folder = tmp_path_factory.mktemp(pins)
    (folder / "train.py").write_text(script(README), encoding="utf-8")
    (folder / "sound.py").write_text(BY_HAND + sound(script(README)), encoding="utf-8")
    alone = environment.run("torchrun --nproc-per-node=2 sound.py", folder)
    refused = environment.run(COMMAND, folder)
    environment.add("agent", pins=pins)
    said = environment.run(COMMAND, folder)
    versions = environment.run(VERSIONS, folder)
    of_python, of_torch = versions.output.split()
    yield OwnJob(
        environment=environment,
        folder=folder,
        alone=alone,
        refused=refused,
        said=said,
        versions=(of_python, of_torch),
    )
    environment.remove()


def sound(train: str) -> str:
    """Without its fault."""
    return train.replace("        raise ValueError", "        pass  # raise ValueError") + 'print("trained")\n'


def test_the_oldest_python_is_here() -> None:
    if OLDEST not in pythons():
        pytest.skip(f"NOT RUN on Python 3.10: it cannot be installed; the oldest here is {min(pythons())}")
    assert min(pythons()) == OLDEST


def test_its_versions_are_those_that_are_meant(own_job: OwnJob, request: pytest.FixtureRequest) -> None:
    python, torch = own_job.versions
    oldest = "oldest" in request.node.name
    wanted = min(pythons()) if oldest else max(pythons())
    assert python.startswith(f"{wanted[0]}.{wanted[1]}.")
    assert torch.startswith("2.6.0") == oldest
    print(f"Python {python}, torch {torch}")


def test_the_readmes_job_gives_one_incident_with_rank_kind_and_line(own_job: OwnJob) -> None:
    rank, line = guilty(script(README))
    assert own_job.said.status == 1
    assert "stopped watching" not in own_job.said.output
    (incident,) = own_job.incidents.values()
    (suspect,) = incident["suspects"]
    assert (incident["kind"], suspect["rank"]) == ("rank_raised", rank) == ("rank_raised", 2)
    where = suspect["where"]
    assert (Path(where["file"]).name, where["line"]) == ("train.py", line)
    assert "who         rank 2" in own_job.said.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("report run -o report.html", "1 incident"),
        ("incidents list --from run", "rank_raised"),
        ("replay run", "equal to incidents.jsonl"),
        ("goodput run", "GPU-hours"),
    ],
)
def test_what_reads_a_run_reads_this_one(words: str, says: str, own_job: OwnJob) -> None:
    said = own_job.environment.run(f"whichrank {words}", own_job.folder)
    assert (said.status, "Traceback" in said.output) == (0, False), said.output
    assert says in said.output


def test_the_wheels_c_modules_recorded_it(own_job: OwnJob) -> None:
    """Where a compiler was; the wheel is one for every Python and torch."""
    modules = (
        "instrumentation._recorder",
        "instrumentation._phases",
        "instrumentation._steps",
        "telemetry._otlp_scan",
        "diagnosis._word_gate",
    )
    imports = "; ".join(f"import whichrank.{name}" for name in modules)
    said = own_job.environment.run(f"python -c '{imports}'", own_job.folder)
    assert (said.status, said.output) == (0, "")


def test_with_torchs_extra_alone_a_script_that_asks_for_it_trains(own_job: OwnJob) -> None:
    """Nobody watches, so the job is as it would be without whichrank."""
    said = own_job.alone
    # Torch's own: of 11 such jobs that never heard of whichrank, one aborted after its last line.
    aborted_at_exit = "terminate called without an active exception" in said.output
    assert said.output.count("trained") == 2, said.output
    assert said.status == 0 or aborted_at_exit, said.output


def test_with_torchs_extra_alone_the_program_says_what_it_lacks(own_job: OwnJob) -> None:
    """What it says to install was installed, and then it went."""
    assert (own_job.refused.status, REFUSAL.findall(own_job.refused.output)) == (2, [("agent", "")])
