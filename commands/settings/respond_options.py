"""Everything that can be set for ``whichrank respond``: hooks, what may be done, limits."""

from __future__ import annotations

import re
import shlex
import string
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from ...telemetry.identity import DEFAULT_CLUSTER
from ...telemetry.vocabulary import Action, Scope
from ..support.addresses import split_address
from .kafka_options import KafkaOptions, default_data, words_of
from .secret_file import read_secret_file

RESPOND_HOOKS = ("webhook", "slurm", "kubernetes")
#: Actions that a machine can carry out.
RESPOND_ACTIONS = (Action.RETRY, Action.RESTART, Action.RESTART_WITHOUT_NODE, Action.DRAIN_AFTER_JOB)
#: What the words in braces of a command may be.
COMMAND_WORDS = ("node", "job", "reason")
_MAY_BE_EMPTY = ("respond_slurm_show", "respond_slurm_show_job", "respond_slurm_exclude")
_COMMANDS = (
    *("respond_slurm_drain", "respond_slurm_undrain", "respond_slurm_requeue", "respond_slurm_hold"),
    *("respond_slurm_release", *_MAY_BE_EMPTY),
)
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class RespondOptions(KafkaOptions):
    """``whichrank respond``. Limits are of this service, whatever hook does it."""

    holds_commands = True

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
    respond_drain_expires_s: float = Field(0.0, ge=0, description="give a node back so long after it; 0: never")

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
    respond_slurm_show_job: list[str] = Field(
        ["scontrol", "-o", "show", "job", "{job}"], description="how a job is; nothing: it is not asked"
    )
    respond_slurm_exclude: list[str] = Field(
        [], description="leaves {nodes} out of a held job; set: in place of draining nodes"
    )
    respond_slurm_hold: list[str] = Field(
        ["scontrol", "requeuehold", "{job}"], description="before respond_slurm_exclude, in place of the requeue"
    )
    respond_slurm_release: list[str] = Field(
        ["scontrol", "release", "{job}"], description="after respond_slurm_exclude"
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
        known = (*COMMAND_WORDS, "nodes") if info.field_name == "respond_slurm_exclude" else COMMAND_WORDS
        if unknown := words - set(known):
            said = ", ".join(f"{{{word}}}" for word in known)
            raise ValueError(f"{{{', '.join(sorted(unknown))}}}: there are {said}")
        if not value and info.field_name not in _MAY_BE_EMPTY:
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
        """Names of the hooks, in the order in which they act."""
        return tuple(dict.fromkeys(words_of(self.respond_hooks)))

    @property
    def actions(self) -> frozenset[str]:
        """Actions that may be done without a person."""
        return frozenset(words_of(self.respond_actions))

    @property
    def scopes(self) -> frozenset[str]:
        """Scopes of the incidents that are answered."""
        return frozenset(words_of(self.respond_scopes))

    def webhook_secret(self) -> str:
        """The webhook's secret, from its file or the settings.

        Raises ValueError for a file that cannot be read, or that others can read.
        """
        if self.respond_webhook_secret_file is None:
            return self.respond_webhook_secret.get_secret_value()
        try:
            return read_secret_file(self.respond_webhook_secret_file)
        except ValueError as error:
            raise ValueError(f"respond_webhook_secret_file {self.respond_webhook_secret_file}: {error}") from None
