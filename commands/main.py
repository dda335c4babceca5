"""The ``whichrank`` program: its commands and their flags. Each command's work is in its own module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from .settings.settings import (
    AgentOptions,
    Evidence,
    HookLevel,
    ProcessOptions,
    RunSettings,
    SettingsError,
    TopicsOptions,
    ViewChoice,
    load_settings,
    print_settings,
)
from .settings.settings_sources import Flags, Settings, settings_path
from .support.late_commands import late_group

EXIT_USAGE = 2

KAFKA = typer.Option(metavar="HOST:PORT", help="brokers, several with commas between them")
PAIRS = typer.Option("--set", metavar="KEY=VALUE", help="any other key, as kafka_tls=true")
CONFIG = typer.Option(help="settings file (TOML); default ./whichrank.toml")
PRINT_CONFIG = typer.Option("--print-config", help="print the settings and stop")

#: Commands and groups with their own modules (``late_commands``).
LATE = {
    "check": ".check.command",
    "goodput": ".goodput.command",
    "notify": ".notify",
    "report": ".report.command",
    "diagnose": ".diagnose",
    "incidents": ".incidents",
    "plan": ".plan",
    "respond": ".respond",
    "grafana": ".grafana",
}

app = typer.Typer(
    name="whichrank",
    cls=late_group(LATE, __package__),
    help="Says which rank, node or line of code stopped or slowed a PyTorch training job, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _program() -> None:
    """Keeps ``run`` a word of its own even while it is the only command."""


@app.command("run", context_settings={"allow_interspersed_args": False}, no_args_is_help=True)
def run_command(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="what to watch")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for incidents, capture and state; default whichrank-out/TIME-JOB")
    ] = None,
    json_lines: Annotated[
        bool | None, typer.Option("--json", help="incidents as JSON lines on stderr, see above")
    ] = None,
    view: Annotated[ViewChoice | None, typer.Option(help="live block, plain lines or nothing")] = None,
    level: Annotated[
        HookLevel | None, typer.Option(help="what the ranks record at the start; default events, which is all")
    ] = None,
    native: Annotated[bool | None, typer.Option(help="compiled recorder where it was built")] = None,
    completion: Annotated[bool | None, typer.Option(help="record also when operations complete")] = None,
    check_inputs: Annotated[
        bool | None,
        typer.Option(help="name the rank that feeds the first NaN into an operation; reads each input once more"),
    ] = None,
    ring_root: Annotated[Path | None, typer.Option(help="parent folder of the rings, on a tmpfs")] = None,
    keep_rings: Annotated[bool | None, typer.Option("--keep-rings", help="leave the rings after the end")] = None,
    capture_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="size of the capture, as 500MB; the oldest goes first; 0: no limit; default 2GiB"
        ),
    ] = None,
    job_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="what people call the job; default: the scheduler's word, or the script"),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]", help="several nodes: whose whichrank judges; default: the rendezvous's machine"
        ),
    ] = None,
    judge_secret: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="several nodes: shared by them; better as WHICHRANK_JUDGE_SECRET"),
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="brokers that get everything as well; default: none")
    ] = None,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
    print_config: Annotated[bool, PRINT_CONFIG] = False,
) -> None:
    """Watch one command. Its output, its exit status and its signals stay its own.

    With --json each revision of an incident is one line on stderr, the same
    as in incidents.jsonl. It begins with {"schema": and all other lines there
    are the command's own, or begin with "whichrank: ". Nothing of whichrank
    goes to stdout.

    Each flag is also a variable (WHICHRANK_OUT; WHICHRANK_JSON_LINES for
    --json) and a key of whichrank.toml (out, json_lines). A flag beats the
    variable, the variable beats the file; --print-config shows what holds.
    """
    given: Flags = {
        "out": out,
        "json_lines": json_lines,
        "view": view,
        "level": level,
        "native": native,
        "completion": completion,
        "check_inputs": check_inputs,
        "ring_root": ring_root,
        "keep_rings": keep_rings,
        "capture_limit": capture_limit,
        "job_name": job_name,
        "judge": judge,
        "judge_secret": judge_secret,
        "kafka": kafka,
    }
    settings, origins = _settings(RunSettings, given, config, pairs)
    if print_config:
        typer.echo(print_settings(settings, origins))
        typer.echo(f"# {explain_nodes(command or [], settings.judge)}")
        return
    if not command:
        typer.echo("whichrank: no command to watch; write it after --: whichrank run -- torchrun train.py", err=True)
        raise typer.Exit(EXIT_USAGE)
    from .run.command import run

    run(command, settings)


@app.command("agent")
def agent_command(
    kafka: Annotated[str | None, KAFKA] = None,
    rings: Annotated[
        str | None, typer.Option(metavar="DIR", help="where rings are, * is allowed; default /dev/shm/whichrank-*")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="folder for the spool and for evidence")] = None,
    spool_limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="of what Kafka has not taken, on disk; default 256MiB")
    ] = None,
    requests: Annotated[bool | None, typer.Option(help="take requests for evidence from Kafka")] = None,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
    print_config: Annotated[bool, PRINT_CONFIG] = False,
) -> None:
    """Watch all jobs of this node and publish what is seen to Kafka.

    For jobs that record rings without whichrank run (WHICHRANK_AUTO=1, or
    whichrank.init() in the script). One per node, as a service: it ends with
    SIGTERM, within 5 s, and starts without Kafka.
    """
    given = {"kafka": kafka, "rings": rings, "data": data, "spool_limit": spool_limit, "requests": requests}
    settings, origins = _settings(AgentOptions, given, config, pairs)
    if print_config:
        typer.echo(print_settings(settings, origins))
        return
    from .services.agent import agent

    raise typer.Exit(agent(settings))


@app.command("process")
def process_command(
    kafka: Annotated[str | None, KAFKA] = None,
    state: Annotated[Path | None, typer.Option(help="folder for what it has learned")] = None,
    instance: Annotated[str | None, typer.Option(help="its name; default: the host's")] = None,
    health: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="/healthz, /readyz, /metrics; default 127.0.0.1:8461")
    ] = None,
    shadow: Annotated[bool | None, typer.Option("--shadow", help="judge, and publish nothing")] = None,
    disable: Annotated[str | None, typer.Option(metavar="KINDS", help="kinds of incidents that are not opened")] = None,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
    print_config: Annotated[bool, PRINT_CONFIG] = False,
) -> None:
    """Judge what agents publish to Kafka, and publish incidents.

    Of several instances one publishes and the others stand by; after 10 s
    without a word from it another takes over. It ends with SIGTERM; SIGHUP,
    or a change of the settings file, makes it read "disable" again.
    """
    given = {
        "kafka": kafka,
        "state": state,
        "instance": instance,
        "health": health,
        "shadow": shadow,
        "disable": disable,
    }
    settings, origins = _settings(ProcessOptions, given, config, pairs)
    if print_config:
        typer.echo(print_settings(settings, origins))
        return
    from .services.process import process

    def reload() -> ProcessOptions:
        return load_settings(ProcessOptions, {k: v for k, v in given.items() if v is not None}, config, pairs or ())[0]

    raise typer.Exit(process(settings, reload, settings_path(config)))


@app.command("topics")
def topics_command(
    kafka: Annotated[str | None, KAFKA] = None,
    partitions: Annotated[int | None, typer.Option(help="of topics that are spread by key; default 12")] = None,
    replication: Annotated[int | None, typer.Option(help="copies of each topic; default 1")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what is missing or wrong")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Make the topics that are missing, and check those that are there.

    Exit status: 0 all can be used; 1 some cannot; 2 Kafka cannot be asked.
    """
    given = {"kafka": kafka, "kafka_partitions": partitions, "kafka_replication": replication}
    settings, _ = _settings(TopicsOptions, given, config, pairs)
    from .services.topics import topics

    raise typer.Exit(topics(settings, dry_run=dry_run, as_json=as_json))


dlq_app = typer.Typer(help="What could not be read: list it, look at it, send it again.", no_args_is_help=True)
app.add_typer(dlq_app, name="dlq")


@dlq_app.command("list")
def dlq_list_command(
    kafka: Annotated[str | None, KAFKA] = None,
    limit: Annotated[int, typer.Option(min=1, help="how many of the newest")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """The newest letters: where each came from, and why it could not be read."""
    settings, _ = _settings(TopicsOptions, {"kafka": kafka}, config, pairs)
    from .services.dlq import dlq_list

    raise typer.Exit(dlq_list(settings, limit=limit, as_json=as_json))


@dlq_app.command("show")
def dlq_show_command(
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="as whichrank dlq list names it")],
    kafka: Annotated[str | None, KAFKA] = None,
    raw: Annotated[bool, typer.Option("--raw", help="its bytes as they came, on stdout")] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """One letter."""
    settings, _ = _settings(TopicsOptions, {"kafka": kafka}, config, pairs)
    from .services.dlq import dlq_show

    raise typer.Exit(dlq_show(settings, letter, raw=raw))


@dlq_app.command("replay")
def dlq_replay_command(
    letters: Annotated[list[str] | None, typer.Argument(metavar="[LETTER]...", help="which letters")] = None,
    everything: Annotated[bool, typer.Option("--all", help="all of them")] = False,
    kafka: Annotated[str | None, KAFKA] = None,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Send letters again to where they came from, after what could not read them was mended."""
    if not letters and not everything:
        typer.echo("whichrank: say which letters, or --all", err=True)
        raise typer.Exit(EXIT_USAGE)
    settings, _ = _settings(TopicsOptions, {"kafka": kafka}, config, pairs)
    from .services.dlq import dlq_replay

    raise typer.Exit(dlq_replay(settings, letters or [], everything=everything))


@app.command("evidence")
def evidence_command(
    rank: Annotated[int, typer.Argument(min=0, metavar="RANK", help="of whom")],
    node: Annotated[str, typer.Option(help="where it runs, as incidents name it")],
    job: Annotated[str, typer.Option(help="its job's id; default: any job of that node")] = "",
    action: Annotated[
        Evidence,
        typer.Option(help="stack, ring, history (events of two minutes), log-tail, flight-recorder, kernel-log"),
    ] = Evidence.stack,
    out: Annotated[Path, typer.Option(help="folder for files")] = Path("evidence"),
    wait: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="for the answer")] = 15.0,
    kafka: Annotated[str | None, KAFKA] = None,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Ask a node's agent for what it can still tell of a rank.

    A stack is printed, files are written. Exit status: 0; 1 if no answer
    came; 2 if Kafka cannot be asked.
    """
    settings, _ = _settings(TopicsOptions, {"kafka": kafka}, config, pairs)
    from .services.evidence import evidence

    raise typer.Exit(evidence(settings, rank=rank, node=node, job=job, action=action.value, out=out, wait_s=wait))


@app.command("replay")
def replay_command(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="folder of a run")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    out: Annotated[Path | None, typer.Option(help="where to write incidents.jsonl; default DIR/replay-N")] = None,
) -> None:
    """Judge again what a run captured, and the rings that a killed run left.

    Exit status: 0; 1 if the incidents differ from those of the run; 2 if
    there is nothing to replay.
    """
    from .embedded.replay import replay

    raise typer.Exit(replay(run, as_json=as_json, out=out))


@app.command("simulate")
def simulate_command(
    scenario: Annotated[str | None, typer.Option(metavar="NAME", help="what goes wrong; see --list")] = None,
    ranks: Annotated[int, typer.Option(min=1, max=131_072, help="of all jobs together")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="the same seed gives the same records")] = 1,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="default: as long as the scenario needs")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="keep it as the folder of a run")] = None,
    kafka: Annotated[str | None, KAFKA] = None,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
    list_all: Annotated[bool, typer.Option("--list", help="the scenarios, and stop")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
) -> None:
    """Let something go wrong in a cluster that never existed, and judge it.

    With --out the folder can be replayed; the truth lies in truth.json
    beside the capture. With --kafka nothing is judged here: agents of all
    nodes send to it, at the pace of life.

    Exit status: 0; 2 for what cannot be simulated, written or sent.
    """
    from .simulate.command import list_scenarios, simulate

    if list_all or scenario is None:
        raise typer.Exit(list_scenarios(as_json=as_json) if list_all else EXIT_USAGE)
    brokers = None
    if kafka is not None:
        brokers = _settings(TopicsOptions, {"kafka": kafka}, config, pairs)[0].kafka_settings(
            client_id="whichrank-simulate"
        )
    raise typer.Exit(
        simulate(scenario, ranks=ranks, seed=seed, minutes=minutes, out=out, kafka=brokers, as_json=as_json)
    )


@app.command("bench")
def bench_command(
    ranks: Annotated[int, typer.Option(min=1, max=131_072, help="of all jobs of a scenario together")] = 64,
    runs: Annotated[int, typer.Option(min=1, help="of each scenario, each with the next seed")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="of the first run")] = 1,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="of scenarios, again for more")] = None,
    detector: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a program to be scored, see docs/faultbench.md")
    ] = None,
    limit: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="per run; more is wrong")] = 900.0,
    jobs: Annotated[int, typer.Option(min=1, help="so many runs at a time, a process each")] = 1,
    results: Annotated[
        Path | None, typer.Option(metavar="DIR", help="keep what was measured; what is there is not run again")
    ] = None,
    part: Annotated[str, typer.Option(metavar="K/N", help="only the K-th of N parts of all runs")] = "1/1",
    held_out: Annotated[
        bool, typer.Option("--held-out", help="seeds, meshes and topologies that were not used for tuning")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="no harmless anomalies beside faults, and no collector fails to watch")
    ] = False,
    sound: Annotated[
        str | None, typer.Option(metavar="LOAD", help="instead: days without a fault, at load reference or reduced")
    ] = None,
    gpu_days: Annotated[float, typer.Option(min=0.001, help="with --sound")] = 10.0,
    cost: Annotated[
        list[int] | None, typer.Option(metavar="RANKS", help="instead: what the operators cost; again for more")
    ] = None,
    accounting: Annotated[bool, typer.Option("--accounting", help="instead: the seconds, against the truth")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
) -> None:
    """Let every fault of the catalogue happen, and count how often it is told rightly.

    Each run is simulated, and judged by the same operators as a real one (or
    by FILE); a simple detector runs beside. The truth reaches only the scorer.

    Exit status: 0; 1 if something is SHORT; 2 for what cannot be run.
    """
    from .bench import suites
    from .bench.command import Wanted, bench

    if sound is not None:
        raise typer.Exit(
            suites.sound_days(sound, gpu_days=gpu_days, seed=seed, jobs=jobs, results=results, limit_s=limit)
        )
    if cost:
        raise typer.Exit(suites.cost(cost, results=results))
    if accounting:
        raise typer.Exit(suites.accounting(results=results))
    wanted = Wanted(
        ranks=ranks,
        runs=runs,
        seed=seed,
        only=only or [],
        detector=detector,
        limit_s=limit,
        jobs=jobs,
        results=results,
        part=part,
        held_out=held_out,
        plain=plain,
    )
    raise typer.Exit(bench(wanted, as_json=as_json))


@app.command("demo")
def demo_command(
    scenario: Annotated[
        str | None, typer.Option(help="kind of fault (a wrong one lists all); default: drawn at random")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    seed: Annotated[int | None, typer.Option(help="repeat an earlier draw")] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the run")] = None,
) -> None:
    """Train for real on four ranks, let one go wrong, and check the incident.

    Exit status: 0 if rank, kind and line are right; 1 if not; 2 for a
    scenario that does not exist.

    With --json stdout holds one object (ok, truth, verdict, wrong, seed, run);
    what whichrank says meanwhile goes to stderr.
    """
    from .demo.command import demo

    raise typer.Exit(demo(scenario, as_json=as_json, seed=seed, out=out))


S = TypeVar("S", bound=Settings)


def _settings(kind: type[S], given: Flags, config: Path | None, pairs: list[str] | None) -> tuple[S, dict[str, str]]:
    """The settings of a command; what is wrong with them is told, and the program ends."""
    try:
        return load_settings(kind, {k: v for k, v in given.items() if v is not None}, config, pairs or ())
    except SettingsError as error:
        for line in str(error).splitlines():
            typer.echo(f"whichrank: {line}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


def explain_nodes(command: list[str], judge: str) -> str:
    """Who would judge this command, in words."""
    from .multi_node.launcher import find_rendezvous
    from .multi_node.peer_plan import InstanceRole, plan_peers
    from .multi_node.peer_setup import is_this_machine

    job = os.environ.get("WHICHRANK_JOB_ID", "")
    plan = plan_peers(find_rendezvous(command, os.environ), judge=judge, job=job, is_local=is_this_machine)
    return (
        plan.why if plan.role is InstanceRole.ALONE else f"{plan.why}: {plan.role.value}, ports from {plan.address} on"
    )


def main() -> None:
    """Entry point of the ``whichrank`` program."""
    app()


if __name__ == "__main__":
    main()
