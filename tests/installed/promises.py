"""What each command does where it was installed with nothing but the extra that is promised to be enough for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: One line, which names the extra.
REFUSAL = re.compile(r"^whichrank: .*\bis not installed: pip install 'whichrank\[(\w+)\]'(; .*)?$", re.MULTILINE)
NO_BROKER = "--kafka 127.0.0.1:1"
_PLACE = "--from sim"
_GRAFANA = "--url http://127.0.0.1:1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """extra: that is enough. words: what is typed after ``whichrank``. says: what must be in its answer."""

    extra: str
    words: str
    says: str
    status: tuple[int, ...] = (0,)
    before: str = ""


def _agent(words: str, says: str, status: tuple[int, ...] = (0,), before: str = "") -> Promise:
    return Promise(extra="agent", words=words, says=says, status=status, before=before)


def _evaluation(words: str, says: str, status: tuple[int, ...] = (0,)) -> Promise:
    return Promise(extra="evaluation", words=words, says=says, status=status)


def _processors(words: str, says: str, status: tuple[int, ...] = (0,)) -> Promise:
    return Promise(extra="processors", words=words, says=says, status=status)


#: By the command's words; each of the program has a row. ``sim`` is a simulated run with one incident, of rank 4.
PROMISES = {
    "run": _agent("run -- sh -c 'exit 3'", "no incident", (3,)),
    "agent": _agent(f"agent {NO_BROKER} --data data", "agent ends", before="timeout --preserve-status -s TERM 25 "),
    "check": _agent("check --mode prolog", "findings", (0, 1, 2, 3)),
    "check pairs": _agent("check pairs", "pip install 'whichrank[torch]'", (2,)),
    "checkpoint-now": _agent("checkpoint-now nothing", "no rings of a running job", (2,)),
    "inject": _agent("inject stop --job nothing", "no such job of yours runs here", (2,)),
    "goodput": _agent("goodput sim", "GPU-hours"),
    "report": _agent("report sim -o sim.html", "1 incident"),
    "replay": _agent("replay sim", "equal to incidents.jsonl"),
    "simulate": _evaluation("simulate --scenario gpu_off_the_bus --ranks 8 --seed 3", "rank 4"),
    "bench": _evaluation("bench --runs 1 --only gpu_off_the_bus --ranks 8 --plain", "gpu_off_the_bus", (0, 1)),
    # Not promised without torch: `test_torch` has it with.
    "demo": _agent("demo --seed 1", "pip install 'whichrank[torch]'", (2,)),
    "diagnose kernel-log": _agent("diagnose kernel-log kern.log", "restart_without_node"),
    "diagnose job-log": _agent("diagnose job-log logs/rank2.log", "ValueError"),
    "diagnose flight-recorder": _agent("diagnose flight-recorder dumps/", "not_entered"),
    "diagnose steps": _agent("diagnose steps phases.jsonl", "input_straggler"),
    "diagnose counters": _agent("diagnose counters ports.jsonl", "link_down"),
    "incidents list": _agent(f"incidents list {_PLACE}", "rank 4"),
    "incidents show": _agent(f"incidents show ID {_PLACE}", "rank 4"),
    "incidents watch": _agent(f"incidents watch {_PLACE}", "rank 4"),
    "incidents export": _agent(f"incidents export ID {_PLACE} --out out.tar.gz", "out.tar.gz: "),
    "incidents label": _agent(f"incidents label ID --cause node=n17 {_PLACE}", "n17"),
    "incidents ack": _agent(f"incidents ack ID {_PLACE}", "acknowledged"),
    "incidents close": _agent(f"incidents close ID {_PLACE}", "closed"),
    "process": _processors("process", "no Kafka broker is named", (2,)),
    "topics": _processors(f"topics {NO_BROKER}", "does not answer", (2,)),
    "dlq list": _processors("dlq list", "no Kafka broker is named", (2,)),
    "dlq show": _processors("dlq show 1", "no Kafka broker is named", (2,)),
    "dlq replay": _processors("dlq replay 1", "no Kafka broker is named", (2,)),
    "evidence": _processors("evidence 1 --node n1", "no Kafka broker is named", (2,)),
    "notify": _processors(f"notify {_PLACE} --once", "a receiver is needed", (2,)),
    "respond": _processors(f"respond {_PLACE} --once", "dry run"),
    "respond status": _processors("respond status", "no whichrank respond has run here", (2,)),
    "respond reset-breaker": _processors("respond reset-breaker", "no whichrank respond has run here", (2,)),
    "plan announce": _processors(f"plan announce profiler --job pretrain-a {_PLACE}", "told to sim"),
    "plan list": _processors(f"plan list {_PLACE}", "announced"),
    "plan cancel": _processors(f"plan cancel 1 {_PLACE}", "no such plan", (2,)),
    "grafana export": Promise(extra="grafana", words="grafana export boards --force", says="files in boards"),
    "grafana sync": Promise(extra="grafana", words=f"grafana sync {_GRAFANA}", says="127.0.0.1:1", status=(2,)),
    "grafana annotate": Promise(
        extra="all", words=f"grafana annotate {_PLACE} --once {_GRAFANA}", says="annotates at http://127.0.0.1:1"
    ),
}
