"""Real ends for the hooks of ``whichrank respond``: a server that checks signatures, a Slurm and a Kubernetes API.

``scontrol`` is a program on the PATH that keeps nodes and jobs in a file, in a real one's words (a real one is tried in
``tests/stack/test_slurm.py``), and writes down how it was called. There is no Kubernetes: the API server answers as its
published API says (strategic merge of nodes, optimistic locking by resourceVersion, Status objects). Not a test module.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.commands.incidents.documents import document
from whichrank.telemetry.incident import Document

SECRET = "s3cret-of-the-webhook"
NODE = "node-1"
GPU_CAUSE = {
    "condition": "xid_79",
    "entity": NODE,
    "device_kind": "gpu",
    "device": "GPU-1",
    "since": 1_700_000_000.0,
    "domain": "hardware",
}


def incident(
    number: int = 1,
    *,
    node: str = NODE,
    action: str = "restart_without_node",
    by: str = "automatic",
    at: float | None = None,
    **fields: Any,
) -> Document:
    """An open page because of a node. at: when it was told, Unix seconds; None: now."""
    now = time.time() if at is None else at
    cause = {**GPU_CAUSE, "entity": node}
    known = document(f"{number:016x}")
    suspects = [{**known["suspects"][0], "node": node}]
    made = {
        "scope": "gpu",
        "suspects": suspects,
        "confidence": 0.95,
        "job": {**known["job"], "id": str(1000 + number), "attempt": "0"},
        "times": {"onset": now - 5.0, "detected": now - 1.0, "attributed": now - 1.0, "resolved": None},
        "advice": {"action": action, "by": by, "text": "restart without it"},
        "cause": cause,
        **fields,
    }
    return document(f"{number:016x}", **made)


class Receiver:
    """Somebody's automation. ``answers``: statuses of the next requests, then 200. ``good``: signed as it must be."""

    def __init__(self, secret: bytes = SECRET.encode()) -> None:
        self.answers: list[int] = []
        self.good: list[tuple[Mapping[str, str], dict[str, Any], float]] = []
        self.bad: list[str] = []
        self.requests = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests += 1
                status = receiver.answers.pop(0) if receiver.answers else 200
                if status == 302:
                    self.send_response(302)
                    self.send_header("Location", "/elsewhere")
                elif (wrong := wrong_with(self.headers, body, secret)) is not None:
                    receiver.bad.append(wrong)
                    self.send_response(401)
                else:
                    if status == 200:
                        receiver.good.append((dict(self.headers), json.loads(body), time.time()))
                    self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hooks/whichrank"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def wrong_with(headers: Any, body: bytes, secret: bytes) -> str | None:
    """As a receiver checks it after the Standard Webhooks scheme; written here anew, not our own code."""
    identity, stamp = headers["webhook-id"], headers["webhook-timestamp"]
    if abs(time.time() - int(stamp)) > 300:
        return "an old timestamp"
    expected = hmac.new(secret, f"{identity}.{stamp}.".encode() + body, hashlib.sha256).digest()
    version, _, signature = headers["webhook-signature"].partition(",")
    if version != "v1" or not hmac.compare_digest(base64.b64decode(signature), expected):
        return "a wrong signature"
    return None


_SCONTROL = """#!{python}
import json, os, sys, time
folder = os.path.dirname(os.path.abspath(__file__))
words = sys.argv[1:]
with open(os.path.join(folder, "calls.jsonl"), "a") as calls:
    calls.write(json.dumps(words) + "\\n")
if os.path.exists(os.path.join(folder, "slow")):
    time.sleep(float(open(os.path.join(folder, "slow")).read()))
if os.path.exists(os.path.join(folder, "fails")):
    sys.exit("slurm_update error: Unable to contact slurm controller (connect failure)")
path = os.path.join(folder, "nodes.json")
nodes = json.load(open(path)) if os.path.exists(path) else {{}}
if words[:2] == ["show", "node"]:
    node = nodes.setdefault(words[2], {{"State": "IDLE", "Reason": ""}})
    if words[2].startswith("unknown"):
        sys.exit("Node " + words[2] + " not found")
    print("NodeName=%s Arch=x86_64 CoresPerSocket=1\\n   State=%s ThreadsPerCore=1\\n   Reason=%s" % (
        words[2], node["State"], node["Reason"]))
elif words[:3] == ["-o", "show", "job"]:
    job = nodes.get("job " + words[3])
    print("JobId=%s JobName=j JobState=RUNNING Reason=None Restarts=0 StartTime=1000 ExcNodeList=(null)" % words[3]
          if job is None else job["Reason"])
elif words[0] == "update":
    pairs = dict(word.split("=", 1) for word in words[1:])
    node = nodes.setdefault(pairs["nodename"], {{"State": "IDLE", "Reason": ""}})
    if pairs["state"] == "drain":
        node.update(State="IDLE+DRAIN", Reason=pairs["reason"])
    else:
        node.update(State="IDLE", Reason="")
json.dump(nodes, open(path, "w"))
"""


class FakeSlurm:
    """A folder for the PATH."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        program = folder / "scontrol"
        program.write_text(_SCONTROL.format(python=python))
        program.chmod(0o755)

    def calls(self, verb: str = "") -> list[list[str]]:
        """Without the looks at jobs."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        known = [json.loads(line) for line in lines]
        return [words for words in known if words[0].startswith(verb) and words[0] != "-o"]

    def put_job(self, job: str, said: str) -> None:
        """What is said of a job: ``scontrol -o show job``, one line each."""
        self.put(f"job {job}", "", said)

    def nodes(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = json.loads((self.folder / "nodes.json").read_text())
        return found

    def put(self, node: str, state: str, reason: str) -> None:
        path = self.folder / "nodes.json"
        nodes = self.nodes() if path.exists() else {}
        path.write_text(json.dumps({**nodes, node: {"State": state, "Reason": reason}}))

    def fail(self) -> None:
        (self.folder / "fails").touch()

    def slow(self, seconds: float) -> None:
        (self.folder / "slow").write_text(str(seconds))


class FakeKubernetes:
    """Nodes and jobs of an API server, over HTTPS with a certificate of its own where ``certificate`` is given.

    meanwhile: called before each PATCH, as somebody else's change in between.
    """

    TOKEN = "token-of-the-service-account"

    def __init__(self, certificate: Path | None = None) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._serve(None)

            def do_PATCH(self) -> None:
                self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _serve(self, patch: dict[str, Any] | None) -> None:
                kind = self.headers.get("Content-Type") or ""
                api.requests.append((self.command, self.path, kind))
                status, answer = api.answer(self.path, patch, kind, self.headers.get("Authorization") or "")
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add_node(self, name: str, **spec: Any) -> None:
        self.nodes[name] = {"metadata": {"name": name, "resourceVersion": "1", "annotations": {}}, "spec": spec}

    def change(self, name: str, **spec: Any) -> None:
        """Somebody else's."""
        node = self.nodes[name]
        node["spec"].update(spec)
        node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)

    def answer(self, path: str, patch: dict[str, Any] | None, kind: str, who: str) -> tuple[int, dict[str, Any]]:
        if who != f"Bearer {self.TOKEN}":
            return _status(401, "Unauthorized")
        if path.startswith("/api/v1/nodes/"):
            objects, name = self.nodes, path.removeprefix("/api/v1/nodes/")
            accepted = "application/strategic-merge-patch+json"
        elif path.startswith("/apis/batch/v1/namespaces/"):
            objects, name, accepted = self.jobs, path, "application/merge-patch+json"
        else:
            return _status(404, "the server could not find the requested resource")
        if name not in objects:
            return _status(404, f'"{name}" not found')
        if patch is None:
            return 200, copy.deepcopy(objects[name])
        if kind != accepted:
            return _status(415, "the body of the request was in an unknown format")
        self.meanwhile()
        found = objects[name]
        version = (patch.get("metadata") or {}).get("resourceVersion")
        if version is not None and version != found["metadata"]["resourceVersion"]:
            return _status(409, "the object has been modified; please apply your changes to the latest version")
        _merge(found, patch)  # lists are replaced whole, which is so of taints in a strategic merge, too
        found["metadata"]["resourceVersion"] = str(int(found["metadata"].get("resourceVersion", "1")) + 1)
        return 200, copy.deepcopy(found)


def _status(code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


def _merge(into: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for name, value in patch.items():
        if name == "resourceVersion":
            continue
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = copy.deepcopy(value)


def make_certificate(folder: Path) -> Path:
    """Key and certificate for 127.0.0.1 in one file, which is its own authority as well."""
    path = folder / "server.pem"
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", certificate, "-days", "1", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    path.write_text(key.read_text() + certificate.read_text())
    return path
