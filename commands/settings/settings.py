"""Everything that can be set, per command; how values are found is in ``settings_sources``."""

from __future__ import annotations

import re
import shlex
import socket
import string
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ByteSize, Field, SecretStr, ValidationInfo, field_validator, model_validator

from ...agents.collectors.options import NAMES as COLLECTORS
from ...agents.collectors.options import NodeOptions, names_of
from ...agents.privacy.privacy_options import LOG_LINES
from ...agents.privacy.privacy_options import NAMES as WITHHELD
from ...agents.privacy.privacy_options import names_of as withheld_names_of
from ...telemetry.identity import DEFAULT_CLUSTER
from ...telemetry.vocabulary import Action, Kind, Scope
from ...transport.kafka_topics import DEFAULT_PARTITIONS
from ..support.addresses import split_address
from .annotate_options import AnnotateOptions
from .kafka_options import KafkaOptions, default_data, words_of
from .notify_options import NotifyOptions
from .settings_sources import Settings, SettingsError, print_settings, read_settings

__all__ = [
    "AgentOptions",
    "AnnotateOptions",
    "KafkaOptions",
    "Level",
    "NotifyOptions",
    "ProcessOptions",
    "RespondOptions",
    "RunSettings",
    "SettingsError",
    "TopicsOptions",
    "View",
    "kinds_of",
    "load_settings",
    "print_settings",
]

#: Below this a capture would hold a few messages only.
MIN_CAPTURE_BYTES = 64 << 10
#: Below this a spool would hold a few messages only.
MIN_SPOOL_BYTES = 1 << 20
DEFAULT_RINGS = Path("/dev/shm/whichrank-*")


class Level(str, Enum):
    off = "off"
    status = "status"
    events = "events"


class View(str, Enum):
    auto = "auto"
    live = "live"
    lines = "lines"
    none = "none"


class Evidence(str, Enum):
    stack = "stack"
    ring = "ring"
    history = "history"
    log_tail = "log-tail"
    flight_recorder = "flight-recorder"
    kernel_log = "kernel-log"


class NodeSettings(KafkaOptions):
    """What is collected of the node itself: the same keys for ``run`` and ``agent``."""

    collect: str = Field("all", description=f"all, none, or with commas: {', '.join(COLLECTORS)}")
    kernel_log: str = Field("", description="the kernel's log; default: /dev/kmsg, journald or the usual files")
    probe_folders: str = Field(
        "", description="folders, with commas, in which a small file is written and removed to see whether that works"
    )
    job_logs: str = Field(
        "",
        description="patterns of log files, with commas, that are read beside what ranks write to files; ** is allowed",
    )
    topology: str = Field("", description="file with each node's rack, leaf, spine; Slurm's is known")
    kubernetes_node: str = Field(
        "", description="file with this node as JSON (kubectl get node NAME -o json), kept up to date by somebody"
    )
    withhold: str = Field("", description=f"what never leaves the node, with commas: {', '.join(WITHHELD)}")

    @field_validator("collect")
    @classmethod
    def _check_collect(cls, value: str) -> str:
        names_of(value)
        return value

    @field_validator("withhold")
    @classmethod
    def _check_withhold(cls, value: str) -> str:
        withheld_names_of(value)
        return value

    @field_validator("probe_folders", "job_logs")
    @classmethod
    def _check_folders(cls, value: str) -> str:
        if relative := [word for word in words_of(value) if not word.startswith("/")]:
            raise ValueError(f"{', '.join(relative)}: give the whole path, from / on")
        return value

    def node_options(self, versions_file: str = "") -> NodeOptions:
        withheld = withheld_names_of(self.withhold)
        return NodeOptions(
            collect=names_of(self.collect) - ({"job_logs"} if LOG_LINES in withheld else set()),
            withheld=withheld,
            kernel_log=self.kernel_log,
            write_folders=tuple(words_of(self.probe_folders)),
            versions_file=versions_file,
            topology_file=self.topology,
            kubernetes_node_file=self.kubernetes_node,
            job_logs=tuple(words_of(self.job_logs)),
        )


class RunSettings(NodeSettings):
    """Everything that can be set for ``whichrank run``."""

    out: Path | None = Field(None, description="folder for incidents, capture and state")
    json_lines: bool = Field(False, description="incidents as JSON lines on stderr")
    view: View = Field(View.auto, description="live, lines or none; auto: live on a terminal")
    level: Level = Field(Level.events, description="what the ranks record at the start")
    native: bool = Field(True, description="use the compiled recorder where it was built")
    completion: bool = Field(True, description="record also when operations complete")
    check_inputs: bool = Field(False, description="look for NaN in what each rank feeds into an operation")
    ring_root: Path | None = Field(None, description="parent folder of the rings, on a tmpfs")
    keep_rings: bool = Field(False, description="leave the rings where they are after a normal end")
    capture_limit: ByteSize = Field(
        ByteSize(2 << 30), description="size of the capture (1GiB, 500MB, bytes), the oldest goes first; 0: no limit"
    )
    judge: str = Field("", description="HOST or HOST:PORT whose whichrank judges; default: from the rendezvous")
    judge_secret: SecretStr = Field(
        SecretStr(""), description="what the instances of one job share; better by variable"
    )
    job_name: str = Field("", description="what people call the job; default: the scheduler's word, or the script")

    @field_validator("capture_limit")
    @classmethod
    def _check_capture_limit(cls, value: ByteSize) -> ByteSize:
        if 0 < value < MIN_CAPTURE_BYTES:
            raise ValueError(f"at least {MIN_CAPTURE_BYTES >> 10} KiB, or 0 for no limit")
        return value

    @field_validator("judge")
    @classmethod
    def _check_judge(cls, value: str) -> str:
        if value:
            split_address(value, 0)
        return value


class AgentOptions(NodeSettings):
    """``whichrank agent``."""

    rings: Path = Field(DEFAULT_RINGS, description="folders of rings, or their parents, to be watched; * is allowed")
    data: Path = Field(
        default_factory=lambda: default_data("agent"), description="folder for the spool and for evidence"
    )
    spool_limit: ByteSize = Field(ByteSize(256 << 20), description="size of the spool on disk (256MiB)")
    requests: bool = Field(True, description="take requests for evidence (stacks, logs, rings, dumps) from Kafka")

    @field_validator("spool_limit")
    @classmethod
    def _check_spool_limit(cls, value: ByteSize) -> ByteSize:
        if value < MIN_SPOOL_BYTES:
            raise ValueError(f"at least {MIN_SPOOL_BYTES >> 20} MiB")
        return value

    @model_validator(mode="after")
    def _check_brokers(self) -> AgentOptions:
        self.kafka_settings()
        return self


def kinds_of(words: str) -> frozenset[Kind]:
    """Kinds by their names, with commas between them. Raises ValueError for what is none."""
    known = {kind.value: kind for kind in Kind}
    names = [word.strip() for word in words.split(",") if word.strip()]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{', '.join(unknown)}: no kind of incident; there are {', '.join(sorted(known))}")
    return frozenset(known[name] for name in names)


class ProcessOptions(KafkaOptions):
    """``whichrank process``."""

    state: Path = Field(default_factory=lambda: default_data("process"), description="folder for what it has learned")
    instance: str = Field(
        default_factory=socket.gethostname, description="its name, unlike any other instance's; default: the host's"
    )
    cluster: str = Field(DEFAULT_CLUSTER, description="name of the cluster, for what it says of itself")
    health: str = Field("127.0.0.1:8461", description="HOST:PORT of /healthz, /readyz and /metrics; empty: none")
    shadow: bool = Field(False, description="judge, and publish nothing")
    disable: str = Field("", description="kinds of incidents that are not opened, with commas; changes at once")

    @field_validator("disable")
    @classmethod
    def _check_disable(cls, value: str) -> str:
        kinds_of(value)
        return value

    @field_validator("health")
    @classmethod
    def _check_health(cls, value: str) -> str:
        if value:
            split_address(value, 0)
        return value

    @model_validator(mode="after")
    def _check_brokers(self) -> ProcessOptions:
        self.kafka_settings()
        return self


RESPOND_HOOKS = ("webhook", "slurm", "kubernetes")
#: Actions that a machine can carry out.
RESPOND_ACTIONS = (Action.RETRY, Action.RESTART, Action.RESTART_WITHOUT_NODE, Action.DRAIN_AFTER_JOB)
#: What the words in braces of a command may be.
COMMAND_WORDS = frozenset({"node", "job", "reason"})
_COMMANDS = ("respond_slurm_drain", "respond_slurm_undrain", "respond_slurm_requeue", "respond_slurm_show")
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class RespondOptions(KafkaOptions):
    """``whichrank respond``. Limits are of this service, whatever hook does it."""

    respond_act: bool = Field(False, description="act; without it only say what would be done")
    respond_from: Path | None = Field(None, description="folder of a run that is read instead of Kafka")
    respond_state: Path = Field(
        default_factory=lambda: default_data("respond"), description="folder for what it has done, and its audit file"
    )
    respond_cluster: str = Field(DEFAULT_CLUSTER, description="name of the cluster, for what it says of itself")
    respond_health: str = Field(
        "127.0.0.1:8462", description="HOST:PORT of /healthz, /readyz and /metrics; empty: none"
    )
    respond_hooks: str = Field("", description=f"with commas: {', '.join(RESPOND_HOOKS)}")
    respond_actions: str = Field(
        ",".join(action.value for action in RESPOND_ACTIONS), description="automatic advice that is followed"
    )
    respond_scopes: str = Field("rank,gpu,node", description="scopes of incidents that are acted on")
    respond_confidence: float = Field(0.9, ge=0, le=1, description="of an incident, at least")
    respond_settle_s: float = Field(30.0, ge=0, description="the advice must have stood so long")
    respond_max_age_s: float = Field(900.0, gt=0, description="older news is not acted on")
    respond_acts_per_hour: int = Field(30, ge=1, description="of each hook")
    respond_nodes_per_hour: int = Field(2, ge=0, description="nodes taken out, then the breaker opens")
    respond_nodes_share: float = Field(0.05, ge=0, le=1, description="of the cluster's nodes out at once, at most")
    respond_cluster_nodes: int = Field(0, ge=0, description="how many nodes the cluster has")
    respond_undo: bool = Field(False, description="give a node back when its incident is resolved")

    respond_webhook_url: str = Field("", description="where a signed request goes")
    respond_webhook_secret: SecretStr = Field(
        SecretStr(""), description="for its signature; better by variable or file"
    )
    respond_webhook_secret_file: Path | None = Field(None, description="file that holds the secret")
    respond_webhook_tries: int = Field(5, ge=1, le=10, description="with a growing pause between them")
    respond_webhook_timeout_s: float = Field(5.0, gt=0, le=30, description="of one try")

    respond_slurm_drain: list[str] = Field(
        ["scontrol", "update", "nodename={node}", "state=drain", "reason={reason}"], description="command and arguments"
    )
    respond_slurm_undrain: list[str] = Field(
        ["scontrol", "update", "nodename={node}", "state=resume"], description="command and arguments"
    )
    respond_slurm_requeue: list[str] = Field(["scontrol", "requeue", "{job}"], description="command and arguments")
    respond_slurm_show: list[str] = Field(
        ["scontrol", "show", "node", "{node}"], description="how a node is; nothing: it is not asked"
    )

    respond_kubernetes_api: str = Field("https://kubernetes.default.svc", description="the API server")
    respond_kubernetes_token: Path = Field(
        _SERVICE_ACCOUNT / "token", description="file with the service account's token"
    )
    respond_kubernetes_ca: Path | None = Field(
        _SERVICE_ACCOUNT / "ca.crt", description="authority of the API server, PEM"
    )
    respond_kubernetes_job: str = Field(
        "/apis/batch/v1/namespaces/{namespace}/jobs/{name}",
        description="path of a job that is annotated; empty: none is. JobSets: /apis/jobset.x-k8s.io/v1alpha2/...",
    )

    @field_validator("respond_hooks", "respond_actions", "respond_scopes")
    @classmethod
    def _check_names(cls, value: str, info: ValidationInfo) -> str:
        known = {
            "respond_hooks": RESPOND_HOOKS,
            "respond_actions": tuple(action.value for action in RESPOND_ACTIONS),
            "respond_scopes": tuple(scope.value for scope in Scope),
        }[str(info.field_name)]
        if unknown := [word for word in words_of(value) if word not in known]:
            raise ValueError(f"{', '.join(unknown)}: there are {', '.join(known)}")
        return value

    @field_validator(*_COMMANDS, mode="before")
    @classmethod
    def _read_command(cls, value: Any) -> Any:
        """As a list in the file; in one line of --set as a shell would split it."""
        return shlex.split(value) if isinstance(value, str) else value

    @field_validator(*_COMMANDS)
    @classmethod
    def _check_command(cls, value: list[str], info: ValidationInfo) -> list[str]:
        words = {name for part in value for _, name, _, _ in string.Formatter().parse(part) if name is not None}
        if unknown := words - COMMAND_WORDS:
            raise ValueError(f"{{{', '.join(sorted(unknown))}}}: there are {{node}}, {{job}}, {{reason}}")
        if not value and info.field_name != "respond_slurm_show":
            raise ValueError("a command and its arguments are needed")
        if value and "{" in value[0]:
            raise ValueError("the command itself is fixed; only arguments may hold words in braces")
        return value

    @field_validator("respond_kubernetes_job")
    @classmethod
    def _check_job_path(cls, value: str) -> str:
        if value and {name for _, name, _, _ in string.Formatter().parse(value) if name} != {"namespace", "name"}:
            raise ValueError("the path of a job has {namespace} and {name}, and no other word in braces")
        return value

    @field_validator("respond_health")
    @classmethod
    def _check_health(cls, value: str) -> str:
        if value:
            split_address(value, 0)
        return value

    @field_validator("respond_webhook_url", "respond_kubernetes_api")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if value and not re.match(r"https?://[^/\s]+", value):
            raise ValueError("an address as https://HOST/PATH is needed")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> RespondOptions:
        if not self.kafka and self.respond_from is None:
            raise ValueError("a source is needed: kafka (HOST:PORT), or respond_from (the folder of a run)")
        if "webhook" in self.hooks and not (self.respond_webhook_url and self.webhook_secret()):
            raise ValueError("the webhook needs respond_webhook_url and respond_webhook_secret (or its file)")
        takes_nodes = {Action.RESTART_WITHOUT_NODE.value, Action.DRAIN_AFTER_JOB.value} & self.actions
        if self.respond_act and self.hooks and takes_nodes and not self.respond_cluster_nodes:
            raise ValueError("respond_cluster_nodes is needed, or the share of nodes that are out cannot be held")
        return self

    @property
    def hooks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(words_of(self.respond_hooks)))

    @property
    def actions(self) -> frozenset[str]:
        return frozenset(words_of(self.respond_actions))

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset(words_of(self.respond_scopes))

    def webhook_secret(self) -> str:
        """Raises ValueError for a file that cannot be read."""
        if self.respond_webhook_secret_file is None:
            return self.respond_webhook_secret.get_secret_value()
        try:
            return self.respond_webhook_secret_file.read_text().strip()
        except OSError as error:
            raise ValueError(f"respond_webhook_secret_file {error.filename}: {error.strerror}") from error


class TopicsOptions(KafkaOptions):
    """``whichrank topics`` and ``whichrank dlq``."""

    kafka_partitions: int = Field(DEFAULT_PARTITIONS, ge=1, le=1000, description="of topics that are spread by key")
    kafka_replication: int = Field(1, ge=1, le=10, description="copies that the brokers keep of a new topic")

    @model_validator(mode="after")
    def _check_brokers(self) -> TopicsOptions:
        self.kafka_settings()
        return self


#: One file may hold the keys of all commands.
ALL_SETTINGS: tuple[type[Settings], ...] = (
    RunSettings,
    AgentOptions,
    ProcessOptions,
    RespondOptions,
    NotifyOptions,
    AnnotateOptions,
    TopicsOptions,
)

S = TypeVar("S", bound=Settings)


def load_settings(
    kind: type[S], flags: Mapping[str, Any], config: Path | None = None, pairs: Sequence[str] = ()
) -> tuple[S, dict[str, str]]:
    """See ``read_settings``."""
    known = dict.fromkeys(key for each in ALL_SETTINGS for key in each.model_fields)
    return read_settings(kind, known, flags, config, pairs)
