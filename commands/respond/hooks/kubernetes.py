"""Nodes cordoned and tainted, jobs annotated, over the API server's own HTTPS with the service account's token.

A node is read, changed and written with its resourceVersion: taints are one list that a patch replaces, so somebody
else's change in between must not be lost. Only what this service has put there is taken back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import urllib3
from urllib3.util import Retry

from ....telemetry.response_outcomes import Outcome
from ...support.bounded_http import ask, bounded_pool
from ..planning.acts import Act, HookOperation, HookResult, Why

TAINT = "whichrank.io/incident"
#: Of nodes and jobs.
INCIDENT, REASON, ADVICE = "whichrank.io/incident", "whichrank.io/reason", "whichrank.io/advice"
_STRATEGIC_MERGE = "application/strategic-merge-patch+json"
_MERGE = "application/merge-patch+json"
#: Somebody else was faster; read again.
_CONFLICT = 409
_TRIES = 4
_MAX_SHOWN_CHARS = 200
#: NAMESPACE/NAME, and what tells a job from an earlier one of that name.
_JOB = re.compile(
    r"(?P<namespace>[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)/(?P<name>[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)(#.*)?\Z"
)


class KubernetesError(Exception):
    """The API server refuses, or cannot be reached; one line."""

    def __init__(self, line: str, status: int = 0) -> None:
        super().__init__(line[:_MAX_SHOWN_CHARS])
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesNode:
    """A node of the API, as far as it concerns us. incident: which took it out, as its annotation says; "" none.

    version: its resourceVersion. taints: each with all of its fields, as others have put them there.
    """

    version: str | None
    unschedulable: bool
    incident: str
    taints: tuple[Mapping[str, str | None], ...]


class Kubernetes:
    name = "kubernetes"

    def __init__(self, api: str, token: Path, ca: Path | None, job_path: str, *, timeout_s: float = 10.0) -> None:
        """job_path: of a job, with {namespace} and {name}; empty: jobs are left alone. Files are read when needed."""
        self._api = api.rstrip("/")
        self._token = token
        self._job_path = job_path
        jobs = {HookOperation.MARK_JOB} if job_path else set()
        self.can: frozenset[HookOperation] = frozenset({HookOperation.DRAIN_NODE, HookOperation.UNDRAIN_NODE, *jobs})
        self._pool = bounded_pool(
            timeout_s=timeout_s,
            ca=ca if api.startswith("https") else None,
            retries=Retry(
                total=3,
                redirect=0,
                backoff_factor=0.5,
                status_forcelist=(429, 500, 502, 503, 504),
                allowed_methods=None,  # each of our patches says which version it changes, or sets the same again
                raise_on_status=False,
                respect_retry_after_header=False,
            ),
        )

    def describe(self, act: Act) -> str:
        """Which object would be patched, and how, in one line."""
        if act.operation is HookOperation.MARK_JOB:
            return f"PATCH {self._path_of_job(act) or act.target} annotation {ADVICE}={act.action}"
        verb = "uncordon" if act.operation is HookOperation.UNDRAIN_NODE else "cordon"
        return f"PATCH {_node_path(act.target)}: {verb}, taint {TAINT}:NoSchedule"

    def do(self, act: Act) -> HookResult:
        """Patches the node or job, and says what came of it; never raises for what the API answers.

        A node that others have changed meanwhile is read again, some times.
        """
        try:
            if act.operation is HookOperation.MARK_JOB:
                return self._mark_job(act)
            return self._change_node(act)
        except KubernetesError as error:
            return HookResult(outcome=Outcome.FAILED, detail=str(error))

    def _change_node(self, act: Act) -> HookResult:
        path = _node_path(act.target)
        for _ in range(_TRIES):
            node = read_node(self._ask("GET", path))
            patch = out_patch(node, act) if act.operation is HookOperation.DRAIN_NODE else back_patch(node, act)
            if isinstance(patch, HookResult):
                return patch
            try:
                self._ask("PATCH", path, patch, _STRATEGIC_MERGE)
            except KubernetesError as error:
                if error.status != _CONFLICT:
                    raise
                continue
            return HookResult(outcome=Outcome.DONE)
        return HookResult(outcome=Outcome.FAILED, detail=f"{path} was changed by others {_TRIES} times meanwhile")

    def _mark_job(self, act: Act) -> HookResult:
        path = self._path_of_job(act)
        if path is None:
            return HookResult(outcome=Outcome.REFUSED, why=Why.NAME_UNSAFE, detail=repr(act.target)[:80])
        marks = {INCIDENT: act.incident, ADVICE: act.action, REASON: act.reason}
        self._ask("PATCH", path, json.dumps({"metadata": {"annotations": marks}}).encode(), _MERGE)
        return HookResult(outcome=Outcome.DONE)

    def _path_of_job(self, act: Act) -> str | None:
        found = _JOB.match(act.target)
        return None if found is None else self._job_path.format(namespace=found["namespace"], name=found["name"])

    def _ask(self, method: str, path: str, patch: bytes | None = None, kind: str = "") -> bytes:
        """The JSON object of a good answer. Raises KubernetesError."""
        try:
            token = self._token.read_text().strip()  # it is renewed by the kubelet
        except OSError as error:
            raise KubernetesError(f"{self._token}: {error.strerror}") from error
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if patch is not None:
            headers["Content-Type"] = kind
        try:
            answer, data = ask(self._pool, method, self._api + path, body=patch, headers=headers)
            found = json.loads(data := data or b"{}")
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", None) or error
            raise KubernetesError(f"{method} {path}: {type(reason).__name__}: {reason}") from error
        except (OSError, ValueError, RecursionError) as error:  # no such certificates; an answer that is no JSON
            raise KubernetesError(f"{method} {path}: {error}") from error
        if not 200 <= answer.status < 300 or not isinstance(found, dict):
            said = found.get("message") if isinstance(found, dict) else ""
            raise KubernetesError(f"{method} {path} answered {answer.status}: {said}", answer.status)
        return data


def _node_path(node: str) -> str:
    return f"/api/v1/nodes/{quote(node, safe='')}"


def read_node(answer: bytes) -> KubernetesNode:
    """The node in an answer of the API, a JSON object. What is missing in it is not known.

    Raises KubernetesError for fields of other types than a node has: it is not changed by guess.
    """
    node = json.loads(answer)
    metadata, spec = node.get("metadata") or {}, node.get("spec") or {}
    try:
        version, marks, taints = metadata.get("resourceVersion"), metadata.get("annotations"), spec.get("taints")
        incident = (marks or {}).get(INCIDENT) or ""
        is_node = isinstance(version, str | None) and isinstance(incident, str) and isinstance(taints, list | None)
        unschedulable = bool(spec.get("unschedulable"))
    except AttributeError:
        is_node = False
    if not is_node or not all(isinstance(taint, dict) for taint in taints or ()):
        raise KubernetesError("what the API server answers is no node")
    return KubernetesNode(version=version, unschedulable=unschedulable, incident=incident, taints=tuple(taints or ()))


def out_patch(node: KubernetesNode, act: Act) -> bytes | HookResult:
    """The patch that cordons and taints this node; ALREADY where somebody has taken it out before. Pure."""
    if node.unschedulable:
        since = f" since incident {node.incident}" if node.incident else ""
        return HookResult(outcome=Outcome.ALREADY, detail=f"unschedulable{since}")
    marks = {INCIDENT: act.incident, REASON: act.reason}
    spec = {
        "unschedulable": True,
        "taints": [*_of_others(node), {"key": TAINT, "value": act.incident, "effect": "NoSchedule"}],
    }
    return json.dumps({"metadata": {"resourceVersion": node.version, "annotations": marks}, "spec": spec}).encode()


def back_patch(node: KubernetesNode, act: Act) -> bytes | HookResult:
    """The patch that takes ``out_patch`` back; REFUSED where the node is not ours any more. Pure."""
    if node.incident != act.incident:
        detail = f"incident {node.incident}" if node.incident else ""
        return HookResult(outcome=Outcome.REFUSED, why=Why.CHANGED_BY_OTHERS, detail=detail)
    if not node.unschedulable:
        return HookResult(outcome=Outcome.REFUSED, why=Why.CHANGED_BY_OTHERS, detail="it is schedulable")
    marks = {INCIDENT: None, REASON: None}
    spec = {"unschedulable": None, "taints": _of_others(node)}
    return json.dumps({"metadata": {"resourceVersion": node.version, "annotations": marks}, "spec": spec}).encode()


def _of_others(node: KubernetesNode) -> list[Mapping[str, str | None]]:
    return [taint for taint in node.taints if taint.get("key") != TAINT]
