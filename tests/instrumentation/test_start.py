"""How a recording starts: never where it should not, never loudly, never by importing what is not needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import whichrank
from tests.instrumentation.jobs import BOOTSTRAP, JobResult, clean_environment, run_python
from whichrank.instrumentation import rank_identity

AS_RANK_0 = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
AUTO = {**AS_RANK_0, "WHICHRANK_AUTO": "1", "PYTHONPATH": str(BOOTSTRAP)}


def test_init_outside_of_a_job_imports_next_to_nothing_and_warns_once(tmp_path: Path) -> None:
    source = """
        import json, sys, warnings
        before = set(sys.modules)
        import whichrank
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = [whichrank.init(), whichrank.init(), whichrank.step(loss=1.0)]
            with whichrank.phase("eval"):
                pass
        new = sorted(name for name in set(sys.modules) - before if name.startswith("whichrank") or "." not in name)
        print(json.dumps([results, [str(w.message) for w in caught], new]))
    """
    done = run_python(textwrap.dedent(source), tmp_path, environment={"PYTHONWARNINGS": "default"})
    results, caught, modules = json.loads(done.output)
    assert results == [False, False, None]
    assert len(caught) == 1
    assert "no RANK in the environment" in caught[0]
    ours = [name for name in modules if name.startswith("whichrank")]
    assert ours == [
        "whichrank",
        "whichrank.instrumentation",
        "whichrank.instrumentation.api",
        "whichrank.instrumentation.levels",
        "whichrank.instrumentation.rank_identity",
        "whichrank.instrumentation.ring_creation",
        "whichrank.telemetry",
        "whichrank.telemetry.emergency_words",
        "whichrank.telemetry.ring_layout",
        "whichrank.telemetry.ring_root",
        "whichrank.telemetry.vocabulary",
    ]
    heavy = {"torch", "numpy", "opentelemetry", "google", "psutil", "rich", "typer", "pydantic", "asyncio"}
    assert not heavy & set(modules)
    assert done.rings == []


def test_a_warning_filter_of_errors_does_not_make_init_raise(tmp_path: Path) -> None:
    done = run_python("import whichrank\nprint(whichrank.init())", tmp_path, environment={"PYTHONWARNINGS": "error"})
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "False")


@pytest.mark.parametrize("case", ["missing", "file", "full name"])
def test_no_ring_no_recording_and_no_exception(tmp_path: Path, case: str) -> None:
    (tmp_path / "file").write_text("")
    directory = {"missing": "/proc/no/such", "file": str(tmp_path / "file"), "full name": "/" + "x" * 300}[case]
    source = "import whichrank\nprint(whichrank.init())"
    done = run_python(
        source, tmp_path, environment={**AS_RANK_0, "WHICHRANK_DIR": directory, "PYTHONWARNINGS": "default"}
    )
    assert done.exit_code == 0
    assert done.output.splitlines()[-1] == "False"
    assert "no ring in" in done.output


def test_the_ring_directory_is_private_and_never_somebody_elses(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    rank_identity.make_ring_directory(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o777)
    with pytest.raises(PermissionError, match="writable for others"):
        rank_identity.make_ring_directory(directory)


def test_default_directory_and_job_name(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert rank_identity.job_of_environment(environment) == "10.0.0.1-29500"
    assert rank_identity.job_of_environment({**environment, "SLURM_JOB_ID": "77"}) == "77"
    assert rank_identity.job_of_environment({**environment, "WHICHRANK_JOB_ID": "../../etc"}) == "_.._etc"
    path = rank_identity.ring_directory_of_environment(environment)
    assert path == Path(f"/dev/shm/whichrank-{os.getuid()}/10.0.0.1-29500")


def test_a_ring_tells_of_which_task_of_an_array_its_rank_is() -> None:
    """By SLURM_JOB_ID alone one of the tasks has the name of the whole array, and would be requeued with all."""
    array = {"SLURM_JOB_ID": "4700", "SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"}
    described = rank_identity.describe_process(array, backend="gloo", torch_version="2")
    assert {name: described.get(name) for name in array} == array


def run_bootstrap(source: str, directory: Path, **environment: str) -> JobResult:
    return run_python(textwrap.dedent(source), directory, environment={**AUTO, **environment})


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    """A rank that imports torch and does nothing else."""
    source = """
        import os, sys
        def rings():
            return len(os.listdir(os.environ["WHICHRANK_DIR"]))
        print(rings(), "torch" in sys.modules, "whichrank.instrumentation.session" in sys.modules)
        import torch
        print(rings(), "whichrank.instrumentation.session" in sys.modules)
    """
    directory = tmp_path_factory.mktemp("started")
    return run_bootstrap(source, directory, TORCHELASTIC_RESTART_COUNT="2", SLURM_JOB_ID="7")


def test_the_bootstrap_starts_with_torch_and_not_before(started: JobResult) -> None:
    assert started.output.splitlines() == ["0 False False", "1 True"]


def test_identity_says_where_and_what(started: JobResult) -> None:
    (ring,) = started.rings
    assert ring.identity["job"] == "7"
    assert ring.identity["restart_count"] == 2
    assert ring.identity["launcher_pid"] == os.getpid()
    assert ring.identity["script"] == str(started.directory / "script.py")
    assert {"host", "torch", "python", "backend", "launcher_start_ticks"} <= set(ring.identity)
    assert ring.words["exit_state"] == 1


@pytest.mark.parametrize("missing", ["WHICHRANK_AUTO", "RANK", "LOCAL_RANK"])
def test_the_bootstrap_needs_its_own_variable_and_a_rank(tmp_path: Path, missing: str) -> None:
    environment = {name: value for name, value in AUTO.items() if name != missing}
    done = run_python(
        "import sys\nprint([name for name in sys.modules if name.startswith('whichrank')], len(sys.meta_path))",
        tmp_path,
        environment=environment,
    )
    without = subprocess.run(
        [sys.executable, "-c", "import sys; print([], len(sys.meta_path))"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.output == without.stdout


def test_the_bootstrap_chains_to_the_sitecustomize_it_hides(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.hidden_ran = __name__, __file__\n")
    for environment in (AUTO, AS_RANK_0):
        done = run_python(
            "import sys, sitecustomize\nprint(sys.hidden_ran, sitecustomize.__file__)",
            tmp_path,
            environment={**environment, "PYTHONPATH": f"{BOOTSTRAP}{os.pathsep}{hidden}"},
        )
        file = str(hidden / "sitecustomize.py")
        assert done.output.strip() == f"('sitecustomize', {file!r}) {file}"


def test_an_error_in_the_hidden_sitecustomize_is_shown_as_always(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    done = run_python("print('on')", tmp_path, environment={**AUTO, "PYTHONPATH": f"{BOOTSTRAP}{os.pathsep}{hidden}"})
    assert done.exit_code == 0
    assert "ValueError: theirs" in done.output
    assert done.output.splitlines()[-1] == "on"


def test_the_bootstrap_works_where_whichrank_is_not_installed(tmp_path: Path) -> None:
    """-S leaves out site-packages with its editable install; the bootstrap finds its own tree."""
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            "import sitecustomize, sys; print(sys.modules['whichrank.instrumentation.auto_start'].__file__)",
        ],
        env=clean_environment(**AUTO),
        capture_output=True,
        text=True,
        check=False,
    )
    expected = Path(whichrank.__file__).parent / "instrumentation" / "auto_start.py"
    assert done.stdout.strip() == str(expected), done.stderr


HELPERS = """
    import multiprocessing, os, subprocess, sys
    import torch

    def child():
        import torch
        torch.save({}, os.devnull)
        torch.nn.Linear(1, 1)(torch.ones(1, 1)).sum().backward()

    def rings():
        return sorted(name for name in os.listdir(os.environ["WHICHRANK_DIR"]) if name.endswith(".ring"))

    if __name__ == "__main__":
        before = rings()
        def events():
            return open(os.path.join(os.environ["WHICHRANK_DIR"], before[0]), "rb").read()
        image = events()
        pid = os.fork()
        if pid == 0:
            child()
            sys.exit(3)
        forked = os.waitpid(pid, 0)[1]
        process = multiprocessing.get_context("spawn").Process(target=child)
        process.start()
        code = "import torch, whichrank; torch.save({}, '/dev/null'); print(whichrank.init())"
        helper = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        process.join()
        print(len(before), rings() == before, os.waitstatus_to_exitcode(forked), process.exitcode)
        print(helper.stdout.strip())
        page = slice(4096, 4096 + 128)
        print(events()[page][:64] == image[page][:64])
"""


def test_helpers_that_inherit_the_rank_neither_own_nor_end_it(tmp_path: Path) -> None:
    done = run_bootstrap(HELPERS, tmp_path)
    assert done.output.splitlines() == ["1 True 3 0", "False", "True"]
    (ring,) = done.rings
    assert ring.words["exit_state"] == 1  # written by the rank at its own end
    assert len([event for event in ring.events if event.kind.name == "EXIT"]) == 1
    assert "checkpoint" not in ring.phases()


WRAPPER = """
    import subprocess, sys
    if len(sys.argv) == 1:
        sys.exit(subprocess.run([sys.executable, __file__, "inner"]).returncode)
    import os, torch
    import torch.distributed as dist
    print(len(os.listdir(os.environ["WHICHRANK_DIR"])))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    print(len(os.listdir(os.environ["WHICHRANK_DIR"])), dist.init_process_group.__name__)
    dist.destroy_process_group()
"""


def test_a_trainer_started_by_a_wrapper_script_is_found_when_it_joins(tmp_path: Path) -> None:
    done = run_bootstrap(WRAPPER, tmp_path)
    assert done.output.splitlines() == ["0", "1 init_process_group"]
