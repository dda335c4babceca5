"""How each command of the documents is tried: one table, the first row that fits holds.

``Here``, ``InClone`` and ``InStack`` are executed by tests of their own, ``Elsewhere`` by a test that is there for more
than this, ``NotHere`` by nobody: with the reason, and with what of it is executed all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tests.docs_commands.collect import Command

RUN = "whichrank-out/RUN"


class Why(Enum):
    """What a machine that runs the tests has not, or would not survive."""

    IMAGE_REGISTRY = "image registry"
    GPU = "GPU"
    SLURM = "Slurm"
    SYSTEMD = "systemd as the first process"
    KUBERNETES = "Kubernetes"
    HOURS = "takes hours, or the whole machine"
    DOWNLOADS = "downloads everything anew"
    OWN_TREE = "changes the tree or environment that the tests run in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Executed in a folder with a real run and small files (``room``).

    runs: what is executed instead of a name alone, or with fewer ranks. places: what stands for its placeholders.
    says: a word of what it must say.
    """

    runs: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    status: tuple[int, ...] = (0,)
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InStack:
    """Executed by tests/stack/test_docs_commands.py against a real broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InClone:
    """Executed by ``test_commands_in_clone`` in a clone of the repository, which they may change."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """test: FILE::NAME, or a file that is run as a whole. words: of the command, which stand there, or in ``by``."""

    test: str
    words: tuple[str, ...]
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotHere:
    """runs: what of it is executed (a plan of make, a help, a check of its settings); empty for nothing."""

    why: Why
    runs: str = ""


Cover = Here | InClone | InStack | Elsewhere | NotHere

#: Of a check: what is wrong with the machine of the tests is not the command's fault.
_FIT = (0, 1, 3)
_RESPOND = f"whichrank respond --from {RUN} --once --json"
_MAKE_TESTS: Mapping[str, Elsewhere] = {
    "test": Elsewhere(".ci/run", ("make test",)),
    # Parts of the two that .ci/run calls.
    "check": Elsewhere("Makefile", ("CHECK_TESTS",)),
    "lint": Elsewhere(".ci/run", ("make lint house",)),
    "wheel-test": Elsewhere(".ci/run", ("make wheel-test",)),
    "stack": Elsewhere(".ci/run", ("make stack",)),
    "setup": Elsewhere(".ci/run", ("make setup",)),
    "demo": Elsewhere("tests/commands/test_demo.py::test_a_real_demo_as_a_program_sees_it", ("demo",)),
    "dashboards": Elsewhere("tests/grafana/test_dashboards.py", ("generate",)),
    "reference": Elsewhere("tests/evaluation/reference/test_reference.py", ("reference_page", "main")),
    "compose-test": Elsewhere("tests/compose/test_compose_up.py", ("--wait",)),
    "house": Elsewhere(".ci/run", ("make lint house",)),
    "tie": Elsewhere("tests/simulator/test_tie.py", ("tie",)),
}
_MAKE_NOT: Mapping[str, Why] = {
    "bench": Why.HOURS,
    "scenarios": Why.HOURS,
    "stack-nodes": Why.HOURS,
    "test-long": Why.HOURS,
    "frameworks": Why.DOWNLOADS,
    "newcomer": Why.DOWNLOADS,
    # What it finds, tests/test_documents.py finds without the site's own program.
    "docs": Why.DOWNLOADS,
    "pictures": Why.HOURS,
    "outside": Why.HOURS,
    "same-incidents": Why.HOURS,
    "pins": Why.DOWNLOADS,
    "setup-flink": Why.DOWNLOADS,
    "stack-flink": Why.DOWNLOADS,
    "format": Why.OWN_TREE,
    # CI runs it.
    "attacks": Why.HOURS,
}

#: The whole text of a command as a pattern, and how it is tried.
RULES: Sequence[tuple[str, Cover]] = (
    # --- watching a job ----------------------------------------------------------------------------------------------
    (r"\.venv/bin/whichrank run -- \.venv/bin/torchrun .* train\.py", Here(status=(1,), says="who         rank 2")),
    (r"(\.venv/bin/)?whichrank( run)?", Here(runs="whichrank run --json -- true")),
    (r"whichrank run --help", Here(says="capture-limit")),
    (r"whichrank run --check-inputs", Here(runs="whichrank run --check-inputs --json -- true")),
    (
        r"whichrank run --restarts 3(( --dry-run)? -- torchrun .*)?",
        Elsewhere("tests/commands/supervise/test_supervised_run.py", words=("--restarts", "--dry-run")),
    ),
    (r"whichrank run --json -- COMMAND", Here(places={"COMMAND": "true"})),
    (r"whichrank run --kafka HOST:PORT( -- COMMAND)?", InStack()),
    (
        r"whichrank run -- torchrun --nnodes=2 .*",
        Elsewhere(
            "tests/clock/test_two_namespaces.py::test_a_node_that_loses_power_is_named_within_seconds",
            ("torchrun", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint="),
            by="tests/scenarios/nodes.py",
        ),
    ),
    (r"srun .*", NotHere(why=Why.SLURM)),
    (r"install -m 6[04][04] .*|systemctl enable --now .*", NotHere(why=Why.SYSTEMD)),
    (
        r"whichrank demo --json",
        Elsewhere("tests/commands/test_demo.py::test_a_real_demo_as_a_program_sees_it", ("demo", "--json")),
    ),
    (r"whichrank replay( DIR)?", Here(runs=f"whichrank replay {RUN}")),
    (r"whichrank replay DIR --json", Here(places={"DIR": RUN}, says='"compared"')),
    # --- incidents, and what it cost ---------------------------------------------------------------------------------
    (r"whichrank incidents list", Here(says="rank_raised")),
    (r"whichrank incidents show ID", Here(says="rank 2")),
    (r"whichrank incidents show ID --from DIR", Here(places={"DIR": RUN}, says="rank 2")),
    (r"whichrank incidents export( ID)?", Here(runs="whichrank incidents export ID")),
    (r"whichrank incidents label( ID --cause \.\.\.)?", Here(runs="whichrank incidents label ID --cause node=n17")),
    (r"whichrank incidents (ack|label|close) ID .+|whichrank incidents ack ID", Here()),
    (
        r"whichrank incidents watch",
        Elsewhere(
            "tests/commands/incidents/test_handling.py::test_watch_tells_each_change_once_and_ends_with_the_run",
            ("incidents", "watch"),
        ),
    ),
    (r"whichrank goodput( whichrank-out/RUN)?( --json)?", Here(says="goodput")),
    (
        r"whichrank checkpoint-now( DIR)?",
        Elsewhere(
            "tests/commands/test_checkpoint_now.py::test_asks_the_ranks_that_listen", ("checkpoint-now", "--reason")
        ),
    ),
    (
        r"(WHICHRANK_ALLOW_INJECT=1 whichrank run|whichrank inject).*",
        Elsewhere(
            "tests/commands/inject/test_game_day.py::test_a_rank_of_a_real_job_is_stopped_named_and_goes_on",
            ("inject", "stop", "--job", "--rank", "ALLOW_VARIABLE"),
        ),
    ),
    (r"whichrank goodput events\.jsonl", Here()),
    (r"whichrank report( whichrank-out/RUN -o report\.html)?", Here(says="1 incident")),
    # --- after a bad night -------------------------------------------------------------------------------------------
    (
        r"whichrank diagnose( kernel-log)?( /var/log/kern\.log)?",
        Here(runs="whichrank diagnose kernel-log kern.log", says="restart_without_node"),
    ),
    (
        r"whichrank diagnose job-log (logs/\*\.log|FILE\.\.\.)",
        Here(runs="whichrank diagnose job-log logs/*.log", says="ValueError"),
    ),
    (
        r"whichrank diagnose flight-recorder( dumps/| DIR( --json)?)?",
        Here(runs="whichrank diagnose flight-recorder dumps/", says="not_entered"),
    ),
    (
        r"whichrank diagnose steps( phases\.jsonl)?",
        Here(runs="whichrank diagnose steps phases.jsonl", says="input_straggler"),
    ),
    (
        r"whichrank diagnose counters( ports\.jsonl)?",
        Here(runs="whichrank diagnose counters ports.jsonl", says="link_down"),
    ),
    *(
        (
            rf"whichrank check --mode {mode}( --expect /etc/whichrank/node\.toml)?",
            Here(runs=f"whichrank check --mode {mode} --expect node.toml", status=_FIT, says="findings"),
        )
        for mode in ("prolog", "epilog")
    ),
    (
        r"whichrank check( --expect node\.toml --write /scratch/probe --json)?",
        Here(runs="whichrank check --expect node.toml --write $PWD/probe --json", status=_FIT, says='"findings"'),
    ),
    (r"whichrank check --only gpu --only nvlink --verbose", Here(status=_FIT, says="gpu")),
    (
        r"whichrank check --mode preflight --set-up setup\.toml --act",
        Elsewhere("tests/commands/check/test_acts.py::test_the_command_says_what_it_would_do", ("--set-up",)),
    ),
    (
        r"whichrank check --mode epilog --reclaim .*",
        Elsewhere("tests/commands/check/test_acts.py::test_the_command_says_what_it_would_do", ("--reclaim",)),
    ),
    (
        r"(srun .*|torchrun .*|)whichrank check pairs.*",
        Elsewhere("tests/commands/check/test_pairs.py::test_ranks_of_several_nodes_measure_each_other", ("pairs",)),
    ),
    (
        r"python -m benchmarks\.pairwise_check",
        Here(runs="python -m benchmarks.pairwise_check --draws 0 --simulated 4 --nodes 64", status=(0, 1), says=" ok"),
    ),
    # --- acting and telling ------------------------------------------------------------------------------------------
    (rf"whichrank respond( --json| --from {RUN} --once --json)?", Here(runs=_RESPOND)),
    (r"whichrank respond --print-config --from \.", Here(says="respond_act = false")),
    (r"whichrank respond (status|reset-breaker .*)", Here()),
    (
        r"whichrank respond --kafka HOST:PORT( --hooks (slurm|slurm,webhook --act))?",
        Elsewhere("tests/stack/test_respond.py::test_a_killed_rank_starts_its_job_again_once", ("respond", "--act")),
    ),
    (rf"whichrank notify( --from {RUN} --once)?", Here(runs=f"whichrank notify --from {RUN} --once")),
    (r"whichrank notify --test oncall", Here()),
    # --- OTLP straight out, packages ----------------------------------------------------------------------------------
    (
        r"whichrank run --otlp http://HOST:4318 -- COMMAND",
        Elsewhere(
            "tests/stack/test_otlp_out.py::test_a_run_sends_incident_steps_spans_and_what_its_node_measures",
            ("run", "--otlp"),
        ),
    ),
    (
        r"whichrank agent --otlp (http://HOST:4318|grpc://HOST:4317)",
        Elsewhere("tests/stack/test_otlp_out.py::test_an_agent_without_kafka_sends_what_it_sees", ("agent", "--otlp")),
    ),
    (r"export OTEL_EXPORTER_OTLP_\w+=.*", Here()),
    (
        r"make packages( PACKAGE_PYTHON=3\.12)?",
        Elsewhere("tests/stack/test_packages.py", ("packages/build.sh",)),
    ),
    (
        r"dpkg -i .*",
        Elsewhere(
            "tests/stack/test_packages.py::test_the_deb_is_installed_runs_by_its_unit_and_goes_without_a_trace",
            ("--install",),
        ),
    ),
    (
        r"whichrank notify --kafka HOST:PORT",
        Elsewhere("tests/stack/test_notify.py::test_one_page_whatever_is_killed", ("notify",)),
    ),
    (
        r"whichrank plan (announce|list|cancel)|whichrank plan announce profiler .*",
        Elsewhere(
            "tests/commands/plan/test_plan.py::test_a_plan_is_announced_listed_and_called_off",
            ("plan", "announce", "list", "cancel", "--end"),
        ),
    ),
    (r"whichrank grafana export DIR", Here(places={"DIR": "grafana"})),
    (
        r"whichrank grafana sync .*",
        Elsewhere(
            "tests/grafana/test_sync.py::test_a_dry_run_shows_the_difference_and_changes_nothing",
            ("sync", "--url", "--use", "--dry-run"),
        ),
    ),
    (
        r"whichrank grafana annotate --kafka HOST:PORT --url URL",
        Elsewhere(
            "tests/grafana/test_annotate_command.py::test_the_service_follows_is_killed_and_goes_on",
            ("grafana", "annotate", "--url"),
        ),
    ),
    (r"export GRAFANA_TOKEN=\.\.\.", Here()),
    # --- Kafka -------------------------------------------------------------------------------------------------------
    (
        r"whichrank (topics|agent|process)( --kafka HOST:PORT)?|whichrank (goodput|report|plan|incidents) .*--kafka .*",
        InStack(),
    ),
    (
        r"whichrank process --engine flink",
        Elsewhere("tests/stack/flink/test_command.py", ('"process", "--engine", "flink"',)),
    ),
    (
        r"whichrank process --engine flink (--print-command|--set flink_savepoint=PATH --set flink_parallelism=4)",
        Elsewhere(
            "tests/commands/flink/test_flink_process.py::test_the_command_is_shown_without_secrets",
            ("--print-command", "flink_savepoint=", "flink_parallelism=4"),
        ),
    ),
    (r"flink stop -m HOST:PORT JOB", Elsewhere("benchmarks/flink_matrix.py", ('"stop"',))),
    (r"whichrank dlq list", InStack()),
    (
        r"whichrank dlq (show|replay)",
        Elsewhere("tests/stack/test_process_command.py", ("dlq", "show", "replay")),
    ),
    (
        r"whichrank evidence RANK --node NODE.*",
        Elsewhere(
            "tests/stack/test_agent_kafka.py::test_a_person_asks_for_evidence_and_gets_it",
            ("evidence", "--node", "--action"),
        ),
    ),
    # --- without a cluster -------------------------------------------------------------------------------------------
    (r"whichrank simulate --list", Here(says="gpu_off_the_bus")),
    (
        r"whichrank simulate --scenario gpu_off_the_bus --ranks 64 --seed [13]",
        Here(runs="whichrank simulate --scenario gpu_off_the_bus --ranks 8 --seed 3", says="gpu_off_the_bus"),
    ),
    (
        r"whichrank bench --results DIR --(sound|cost) .*|whichrank bench --cost 16384|whichrank bench .*--accounting",
        Elsewhere("tests/evaluation/test_bench_suites.py", ("sound", "cost")),
    ),
    (r"whichrank bench.*", Elsewhere("tests/evaluation/test_bench.py", ("held_out", "results", "ranks", "runs"))),
    # --- the repository ----------------------------------------------------------------------------------------------
    *((rf"make {name}", cover) for name, cover in _MAKE_TESTS.items()),
    *((rf"make {name}", NotHere(why=why, runs=f"make -n {name}")) for name, why in _MAKE_NOT.items()),
    *((rf"{text}", InClone()) for text in ("make clean", "pre-commit install")),
    (r"pip install '\.\[agent\]' \./evaluation", Elsewhere("tests/installed/test_extras.py", ("evaluation",))),
    (r"pip install '\.\[agent\]'", Elsewhere("tests/installed/test_extras.py", ("with_extra", "agent"))),
    (
        r"pip install --require-hashes -r requirements/newest\.txt|pip install --no-deps --no-build-isolation -e \.",
        # By `make setup`, with uv or pip.
        Elsewhere(
            ".ci/run",
            ("--require-hashes -r requirements/newest.txt", "--no-deps --no-build-isolation --editable ."),
            by="Makefile",
        ),
    ),
    (r"\.venv/bin/python -m pytest tests/gpu -rs", NotHere(why=Why.GPU)),
    (
        r"\.venv/bin/python tests/scenarios/run\.py .*",
        # The scenario of the document is one that is being written.
        Here(runs='.venv/bin/python tests/scenarios/run.py --only "killed" --seed 7 --list', says="killed"),
    ),
    (
        r"python -m tests\.docs_commands",
        Elsewhere("tests/docs_commands/test_coverage.py::test_the_program_prints_the_exceptions", ("main",)),
    ),
    # Small: of what a full one takes hours for.
    *(
        (rf"python -m benchmarks\.{name}", Here(runs=f"python -m benchmarks.{name} {small}", status=(0, 1), says=" ok"))
        for name, small in (
            ("detectors", "--jobs 1"),
            ("cost_sheet", "--only sizes --world 1280"),
            ("people_telemetry", "--seconds 4"),
            ("cluster_conditions", "--only Ceph"),
        )
    ),
    (
        r"python -m benchmarks\.faultbench --results DIR|make faultbench",
        Here(runs="python -m benchmarks.faultbench --results faultbench", status=(1,), says="catalogue"),
    ),
    (
        r"python -m benchmarks\.faultbench_fill DIR .*|make faultbench-whole",
        Here(runs="python -m benchmarks.faultbench_fill faultbench --plan", status=(0, 1), says="1024-ranks"),
    ),
    (r"python -m tests\.simulator\.tie --stored", Here(says="kinds of faults with the same finding")),
    (
        r"python -m tests\.simulator\.accounting",
        Here(runs="python -m tests.simulator.accounting --seeds 1 --hours 0.25", status=(0, 1), says="ETTR"),
    ),
    # It takes no arguments: it would run.
    (
        r"python -m benchmarks\.cluster_operator",
        NotHere(why=Why.HOURS, runs="python -c 'import benchmarks.cluster_operator'"),
    ),
    (
        r"(\.venv/bin/)?python -m (?P<module>benchmarks\.\w+|tests\.\w+(\.\w+)?).*",
        NotHere(why=Why.HOURS, runs="python -m {module} --help"),
    ),
    # --- compose -----------------------------------------------------------------------------------------------------
    (r"deploy/first-start\.sh", Here()),
    (r"deploy/victorialogs/readers\.sh secrets 12001 team-a/llm", Here()),
    (r"deploy/kafka/certificates\.sh secrets/tls HOST", Here()),
    (
        r"docker compose (--profile \w+ )?up --wait|docker compose ps",
        Elsewhere("tests/compose/test_compose_up.py", ("up", "--wait")),
    ),
    (
        r"docker compose -f docker-compose\.yml -f compose\.tls\.yaml up --wait",
        Elsewhere(
            "tests/stack/test_compose_files.py::test_compose_takes_every_profile_and_overlay",
            ("compose_config", "TLS"),
        ),
    ),
    (
        r"docker compose -f docker-compose\.yml -f compose\.flink\.yaml up .*",
        Elsewhere(
            "tests/stack/test_compose_files.py::test_compose_takes_every_profile_and_overlay",
            ("compose_config", "FLINK"),
        ),
    ),
    (r"docker compose exec kafka .*", NotHere(why=Why.IMAGE_REGISTRY)),
    (
        r"docker compose (stop collector|up --wait --force-recreate prometheus collector grafana)",
        NotHere(why=Why.IMAGE_REGISTRY),
    ),
    (r"rm -f secrets/prometheus_password secrets/prometheus_web", Here()),
)


def cover_of(text: str) -> Cover | None:
    """None: nobody tries it."""
    for pattern, cover in RULES:
        if match := re.fullmatch(pattern, text):
            if isinstance(cover, NotHere) and cover.runs:
                return NotHere(why=cover.why, runs=cover.runs.format(**match.groupdict()))
            return cover
    return None


def executed_text(command: Command, cover: Here) -> str:
    """What is typed for it, but for what only the room knows (``ID``)."""
    text = cover.runs or command.text
    for placeholder, place in cover.places.items():
        text = text.replace(placeholder, place)
    return text
