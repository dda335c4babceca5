"""The ``whichrank`` program: its commands and their flags. Each command's work is in its own module."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .run.run_flags import run_command
from .settings.command_line import CONFIG, KAFKA, OTLP, PAIRS, PRINT_CONFIG
from .settings.settings import (
    AgentOptions,
    Engine,
    Evidence,
    ProcessOptions,
    TopicsOptions,
    load_settings,
    print_settings,
)
from .settings.settings_or_exit import EXIT_USAGE, settings_or_exit
from .settings.settings_sources import settings_path
from .support.evaluation_commands import installed_commands
from .support.late_commands import late_group

#: Commands and groups with their own modules (``late_commands``).
LATE = {
    "check": ".check_pairs.group",
    "checkpoint-now": ".checkpoint_now",
    "goodput": ".goodput.command",
    "inject": ".inject.command",
    "notify": ".notify",
    "report": ".report.command",
    "diagnose": ".diagnose",
    "incidents": ".incidents",
    "plan": ".plan",
    "respond": ".respond",
    "grafana": ".grafana",
    **installed_commands(),
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


app.command("run", context_settings={"allow_interspersed_args": False}, no_args_is_help=True)(run_command)


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
    otlp: Annotated[str | None, OTLP] = None,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
    print_config: Annotated[bool, PRINT_CONFIG] = False,
) -> None:
    """Watch all jobs of this node and publish what is seen to Kafka.

    Spans, metrics and events also go to an OpenTelemetry endpoint where one
    is named (--otlp, or OTEL_EXPORTER_OTLP_ENDPOINT), with or without Kafka.

    For jobs that record rings without whichrank run (WHICHRANK_AUTO=1, or
    whichrank.init() in the script). One per node, as a service: it ends with
    SIGTERM, within 5 s, and starts without Kafka.

    Exit status: 0; 2 if it cannot start.
    """
    given = {
        "kafka": kafka,
        "rings": rings,
        "data": data,
        "spool_limit": spool_limit,
        "requests": requests,
        "otlp": otlp,
    }
    settings, origins = settings_or_exit(AgentOptions, given, config, pairs)
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
    engine: Annotated[str | None, typer.Option(metavar="ENGINE", help="embedded, or flink: submit it")] = None,
    print_command: Annotated[bool, typer.Option("--print-command", help="with flink: only show how to submit")] = False,
    pairs: Annotated[list[str] | None, PAIRS] = None,
    config: Annotated[Path | None, CONFIG] = None,
    print_config: Annotated[bool, PRINT_CONFIG] = False,
) -> None:
    """Judge what agents publish to Kafka, and publish incidents.

    With --engine flink it submits the job to a Flink cluster, unless it runs
    there, and answers for its health; the job goes on when this ends.

    Of several instances one publishes and the others stand by; after 10 s
    without a word from it another takes over. It ends with SIGTERM; SIGHUP,
    or a change of the settings file, makes it read "disable" again.

    Exit status: 0; 2 if it cannot start.
    """
    given = {
        "kafka": kafka,
        "state": state,
        "instance": instance,
        "health": health,
        "shadow": shadow,
        "disable": disable,
        "engine": engine,
    }
    settings, origins = settings_or_exit(ProcessOptions, given, config, pairs)
    if print_config:
        typer.echo(print_settings(settings, origins))
        return
    if settings.engine is Engine.flink:
        from .services.flink_process import process_on_flink

        raise typer.Exit(process_on_flink(settings, print_only=print_command))
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
    settings, _ = settings_or_exit(TopicsOptions, given, config, pairs)
    from .services.topics_command import topics

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
    """The newest letters: where each came from, and why it could not be read.

    Exit status: 0; 2 if Kafka cannot be asked.
    """
    settings, _ = settings_or_exit(TopicsOptions, {"kafka": kafka}, config, pairs)
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
    """One letter.

    Exit status: 0; 2 if there is no such letter, or Kafka cannot be asked.
    """
    settings, _ = settings_or_exit(TopicsOptions, {"kafka": kafka}, config, pairs)
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
    """Send letters again to where they came from, after what could not read them was mended.

    Exit status: 0; 1 if some were not taken; 2 if Kafka cannot be asked.
    """
    if not letters and not everything:
        typer.echo("whichrank: say which letters, or --all", err=True)
        raise typer.Exit(EXIT_USAGE)
    settings, _ = settings_or_exit(TopicsOptions, {"kafka": kafka}, config, pairs)
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
    settings, _ = settings_or_exit(TopicsOptions, {"kafka": kafka}, config, pairs)
    from .services.evidence import evidence

    raise typer.Exit(evidence(settings, rank=rank, node=node, job=job, action=action.value, out=out, wait_s=wait))


@app.command("replay")
def replay_command(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="folder of a run")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="where to write incidents.jsonl; default DIR/replay-N, of another user's run a temporary folder"
        ),
    ] = None,
) -> None:
    """Judge again what a run captured, and the rings that a killed run left.

    Exit status: 0; 1 if the incidents differ from those of the run; 2 if
    there is nothing to replay.
    """
    from .embedded.replay import replay

    raise typer.Exit(replay(run, as_json=as_json, out=out))


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


def main() -> None:
    """Entry point of the ``whichrank`` program."""
    app()


if __name__ == "__main__":
    main()
