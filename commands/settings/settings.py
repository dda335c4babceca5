"""Everything that can be set, per command; how values are found is in ``settings_sources``."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar

from pydantic import ByteSize, Field, SecretStr, field_validator, model_validator

from ...agents.collectors.options import NAMES as COLLECTORS
from ...agents.collectors.options import NodeOptions, names_of
from ...agents.privacy.privacy_options import LOG_LINES
from ...agents.privacy.privacy_options import NAMES as WITHHELD
from ...agents.privacy.privacy_options import names_of as withheld_names_of
from ...telemetry.identity import DEFAULT_CLUSTER
from ...telemetry.vocabulary import Kind
from ...transport.kafka_topics import DEFAULT_PARTITIONS
from ..multi_node.peer_tls import PeerTls
from ..otlp_out.environment import check_otlp_url, wanted_signals
from ..support.addresses import split_address
from .annotate_options import AnnotateOptions
from .check_options import IDLE_CHECK, SITE_CHECKS, CheckOptions
from .kafka_options import KafkaOptions, default_data, words_of
from .notify_options import NotifyOptions
from .respond_options import RespondOptions
from .restart_options import RestartOptions
from .secret_file import read_secret_file
from .settings_sources import Flags, Settings, SettingsError, print_settings, read_settings

__all__ = [
    "AgentOptions",
    "AnnotateOptions",
    "CheckOptions",
    "Engine",
    "HookLevel",
    "KafkaOptions",
    "NotifyOptions",
    "ProcessOptions",
    "RespondOptions",
    "RunSettings",
    "SettingsError",
    "TopicsOptions",
    "ViewChoice",
    "kinds_of",
    "load_settings",
    "print_settings",
]

#: Below this a capture would hold a few messages only.
MIN_CAPTURE_BYTES = 64 << 10
#: Below this a spool would hold a few messages only.
MIN_SPOOL_BYTES = 1 << 20
DEFAULT_RINGS = Path("/dev/shm/whichrank-*")


class HookLevel(str, Enum):
    off = "off"
    status = "status"
    events = "events"


class Engine(str, Enum):
    embedded = "embedded"
    flink = "flink"


class ViewChoice(str, Enum):
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
    site_checks: str = Field("", description=SITE_CHECKS)
    check_idle_s: float = Field(
        0.0, ge=0.0, le=86_400.0, description="seconds between whichrank's own checks while no job is here; 0: none"
    )
    kubernetes_node: str = Field(
        "", description="file with this node as JSON (kubectl get node NAME -o json), kept up to date by somebody"
    )
    withhold: str = Field("", description=f"what never leaves the node, with commas: {', '.join(WITHHELD)}")
    otlp: str = Field(
        "",
        description="OpenTelemetry endpoint: http://, https://, or over gRPC grpc://, grpcs://; default: OTEL_* say it",
    )

    @field_validator("otlp")
    @classmethod
    def _check_otlp(cls, value: str) -> str:
        if value:
            check_otlp_url(value)
        return value

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
        """What this node's collectors are told. Raises ValueError for unknown names.

        versions_file: where they keep what was installed the last time.
        """
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
            site_checks=self.site_checks,
            check_command=(sys.executable, "-m", "whichrank.commands.main", *IDLE_CHECK),
            check_idle_s=self.check_idle_s,
        )


class RunSettings(RestartOptions, NodeSettings):
    """Everything that can be set for ``whichrank run``."""

    reads_current_folder = True

    out: Path | None = Field(None, description="folder for incidents, capture and state")
    json_lines: bool = Field(False, description="incidents as JSON lines on stderr")
    view: ViewChoice = Field(ViewChoice.auto, description="live, lines or none; auto: live on a terminal")
    level: HookLevel = Field(HookLevel.events, description="what the ranks record at the start")
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
        SecretStr(""), description="what the instances of one job share, by variable or in a settings file (0600)"
    )
    judge_secret_file: Path | None = Field(None, description="file that holds the secret")
    peer_tls: bool = Field(True, description="encrypt what nodes say to each other; off: nothing is encrypted")
    peer_cert: Path | None = Field(
        None, description="this node's certificate, PEM; default: nodes make one from the secret"
    )
    peer_key: Path | None = Field(None, description="its key, PEM, which not everybody may read")
    peer_ca: Path | None = Field(None, description="the authority whose certificates nodes believe, PEM")
    job_name: str = Field("", description="what people call the job; default: the scheduler's word, or the script")

    @model_validator(mode="after")
    def _check_secret(self) -> RunSettings:
        self.shared_secret()
        self.tls()
        return self

    def tls(self) -> PeerTls:
        """How nodes talk to each other. Raises ValueError where only some of the files are named."""
        return PeerTls(on=self.peer_tls, certificate=self.peer_cert, key=self.peer_key, authority=self.peer_ca)

    def shared_secret(self) -> str:
        """What the instances of one job share, from its file or the settings; "" none. Raises ValueError for a file
        that cannot be read, is empty, or that others can read.
        """
        if self.judge_secret_file is None:
            return self.judge_secret.get_secret_value()
        try:
            secret = read_secret_file(self.judge_secret_file)
        except ValueError as error:
            raise ValueError(f"judge_secret_file {self.judge_secret_file}: {error}") from None
        if not secret:
            raise ValueError(f"judge_secret_file {self.judge_secret_file}: is empty; write the secret into it")
        return secret

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
        if self.kafka or not (self.otlp or wanted_signals(os.environ)[0]):
            self.kafka_settings()
        return self


def kinds_of(words: str) -> frozenset[Kind]:
    """Kinds of incidents by their names in a text, with commas between them. Raises ValueError for an unknown one."""
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
    engine: Engine = Field(Engine.embedded, description="embedded: this process judges; flink: a Flink cluster does")
    flink: str = Field("127.0.0.1:8081", description="HOST:PORT of the JobManager's REST interface")
    flink_home: Path | None = Field(None, description="Flink's home, by whose bin/flink the job is submitted")
    flink_parallelism: int = Field(0, ge=0, le=128, description="of the Flink job; 0: as the cluster is set")
    flink_checkpoint_ms: int = Field(
        1000, ge=100, le=600_000, description="between checkpoints; with each the conclusions become visible"
    )
    flink_savepoint: str = Field("", description="savepoint or checkpoint that a new Flink job begins with")
    flink_beats: int = Field(4, ge=0, le=20, description="a second, into each input partition; 0: others write them")

    @field_validator("flink")
    @classmethod
    def _check_flink(cls, value: str) -> str:
        split_address(value, 0)
        return value

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
    CheckOptions,
)

S = TypeVar("S", bound=Settings)


def load_settings(
    kind: type[S], flags: Flags, config: Path | None = None, pairs: Sequence[str] = ()
) -> tuple[S, dict[str, str]]:
    """The settings of a command from file, environment and flags; see ``read_settings``. Raises SettingsError."""
    known = dict.fromkeys(key for each in ALL_SETTINGS for key in each.model_fields)
    fields = {key: field for each in ALL_SETTINGS for key, field in each.model_fields.items()}
    secrets = sorted(key for key, field in fields.items() if field.annotation is SecretStr)
    return read_settings(kind, known, flags, config, pairs, secrets=secrets)
