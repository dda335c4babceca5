"""Receivers, API servers, schedulers and agents that answer services and commands with malice."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.attacks.a_judge import forget_peak, peak_mb
from tests.attacks.register import Outcome, attack
from whichrank.commands.notify.messages.notices import AlertState, test_notice
from whichrank.commands.notify.notify_service import make_receiver
from whichrank.commands.notify.receivers import DeliveryAnswer, DeliveryContext
from whichrank.commands.respond.hooks.kubernetes import Kubernetes
from whichrank.commands.respond.hooks.slurm import Commands, Slurm
from whichrank.commands.respond.hooks.webhook_hook import WebhookHook
from whichrank.commands.respond.planning.acts import Act, HookOperation, HookResult
from whichrank.commands.settings.notify_options import ReceiverOptions
from whichrank.telemetry.incident_reading import read_incident

_TOKEN = "token-of-the-service-4711"


@contextlib.contextmanager
def answering(answer: bytes | Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that reads a request and answers so, whatever it was; its address, and the requests that came."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(20)
            data = b""
            while b"\r\n\r\n" not in data and (more := connection.recv(1 << 16)):
                data += more
            asked.append(data)
            if callable(answer):
                answer(connection)
            else:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        listener.close()


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


#: Each is one that a server may send, for the heads of all.
_HEADS: dict[str, bytes] = {
    "Location: http://[": http(b"", "Location: http://[", status="302 Found"),
    "Location: port": http(b"", "Location: http://h:99999999/", status="307 x"),
    "Location: bytes": http(b"", "Location: \xff\x00\xfe", status="303 x"),
    "Retry-After: year 99999": http(b"", "Retry-After: Fri, 31 Dec 99999 23:59:59 GMT", status="503 x"),
    "Retry-After: digits": http(b"", "Retry-After: " + "9" * 5000, status="429 x"),
    "Retry-After: other digits": http(b"", "Retry-After: \xb2", status="429 x"),
    "Content-Length: -1": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
    "Content-Length: two": b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n{}",
    "Encoding: broken": http(b"no gzip", "Content-Encoding: gzip"),
    "Encoding: unknown": http(b"{}", "Content-Encoding: gzip, zstd, br, x"),
    "chunks: broken": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "status 0": b"HTTP/1.1 000 \r\n\r\n",
    "status 999": b"HTTP/1.1 999 \x1b]0;x\x07\r\n\r\n",
    "no HTTP": b"\x00" * 4096,
    "200 headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    "cookie": http(b"{}", "Set-Cookie: a=b; Domain=.example; \xff"),
    "switching": b"HTTP/1.1 101 x\r\n\r\n",
}
_DEEP = b"[" * 100_000
_BODIES: dict[str, bytes] = {
    "deep": _DEEP,
    "list": b"[]",
    "null": b"null",
    "digits": b'{"ok": true, "ts": ' + b"9" * 5000 + b"}",
    "not UTF-8": b'{"ok": true, "ts": "\xff\xfe"}',
    "surrogate": b'{"ok": true, "ts": "\\ud83d", "channel": "\\udc00"}',
    "messages 5": b'{"ok": true, "messages": 5}',
    "messages of texts": b'{"ok": true, "messages": ["x", 1, null, [], {}]}',
    "metadata list": b'{"ok": true, "messages": [{"metadata": [1]}], "response_metadata": [1]}',
    "payload list": b'{"ok": true, "messages": [{"metadata": {"event_payload": [1]}, "ts": {}}]}',
    "cursor dict": b'{"ok": true, "ts": {"a": 1}, "response_metadata": {"next_cursor": {"a": 1}}}',
    "pages without end": b'{"ok": true, "messages": [], "response_metadata": {"next_cursor": "x"}}',
    "error dict": b'{"ok": false, "error": {"a": "\\u001b[31m"}}',
    "error lines": b'{"ok": false, "error": "a\\nwhichrank: FORGED\\u001b[31m"}',
}


def _receivers(url: str) -> dict[str, ReceiverOptions]:
    os.environ["ATTACK_TOKEN"] = _TOKEN
    more: dict[str, Any] = {"url": url, "secret_variable": "ATTACK_TOKEN", "timeout_s": 0.5}
    return {
        kind: ReceiverOptions(kind=kind, **more, **({"channel": "C01"} if kind == "slack" else {}))  # type: ignore[arg-type]
        for kind in ("slack", "pagerduty", "alertmanager", "webhook")
    }


@attack(
    "D201",
    "d",
    "a receiver of pages answers with 17 odd heads and 14 odd bodies (Location: http://[, JSON of other types, ...)",
    asked="an answer each, nothing raised: one receiver's exception ends the pages of all",
    limit_s=60,
)
def odd_receivers(folder: Path) -> Outcome:
    raised, odd, tried = [], [], 0
    answers = _HEADS | {name: http(body, "Content-Type: application/json") for name, body in _BODIES.items()}
    for name, answer in answers.items():
        with answering(answer) as (url, _):
            for kind, options in _receivers(url).items():
                receiver = make_receiver(kind, options)
                notice = test_notice(kind, time.time(), "c", AlertState.OPEN)
                for is_unsure in (False, True) if kind == "slack" else (False,):
                    tried += 1
                    try:
                        done = receiver.send(notice, DeliveryContext(is_unsure=is_unsure))
                    except Exception as error:
                        raised.append(f"{kind}, {name}: {type(error).__name__}")
                        continue
                    if not isinstance(done, DeliveryAnswer) or len(done.detail) > 400:
                        odd.append(f"{kind}, {name}: {done.detail[:80]!r}")
    return Outcome(held=not raised and not odd and tried > 100,
                   measured=f"{tried} tries, {len(raised)} raised: {raised[:6]}, odd: {odd[:3]}"[:400])  # fmt: skip


def _act(operation: HookOperation, target: str = "node-a") -> Act:
    document = read_incident({"id": "0123456789abcdef", "revision": 1})
    return Act(hook="x", operation=operation, target=target, reason="r", incident="0123456789abcdef", action="drain",
               revision=1, job="j", attempt="a", document=document)  # fmt: skip


def _kubernetes(url: str, folder: Path) -> Kubernetes:
    token = folder / "token"
    token.write_text(_TOKEN)
    return Kubernetes(url, token, None, "/apis/batch/v1/namespaces/{namespace}/jobs/{name}", timeout_s=0.5)


_NODES = [
    b"[]", b"5", b'"x"', b"null", _DEEP, b'{"metadata": 5}', b'{"metadata": [1], "spec": [2]}', b'{"spec": "x"}',
    b'{"metadata": {"annotations": [1]}}', b'{"metadata": {"annotations": {"whichrank.io/incident": {"a": 1}}}}',
    b'{"spec": {"taints": 5}}', b'{"spec": {"taints": [1, null, "x"]}}', b'{"spec": {"taints": {"a": 1}}}',
    b'{"metadata": {"resourceVersion": NaN}}', b'{"spec": {"unschedulable": "no"}}', b"\xff", b"9" * 5000,
    b'{"message": {"a": "\\u001b[31m"}}', b'{"metadata": {"resourceVersion": "\\ud83d"}}',
]  # fmt: skip


@attack(
    "D202",
    "d",
    "the API server and a webhook's receiver answer `respond` with nodes of other types, deep JSON, odd heads",
    asked="the act has failed, in a line; nothing raised",
    limit_s=120,
)
def odd_api_servers(folder: Path) -> Outcome:
    raised, tried = [], 0
    operations = (HookOperation.DRAIN_NODE, HookOperation.UNDRAIN_NODE)
    answers = {name: answer for name, answer in _HEADS.items() if not name.startswith(("Retry", "no HTTP"))}
    answers |= {repr(body[:50]): http(body) for body in _NODES}
    for name, answer in answers.items():
        with answering(answer) as (url, _):
            hooks = [(_kubernetes(url, folder), operation) for operation in operations]
            hooks.append((WebhookHook(url, "s" * 32, tries=1, timeout_s=0.5), HookOperation.TELL))  # type: ignore[arg-type]
            for hook, operation in hooks:
                tried += 1
                try:
                    done = hook.do(_act(operation))
                    if not isinstance(done, HookResult) or len(done.detail) > 300:
                        raised.append(f"{hook.name}, {name}: {str(done)[:60]}")
                except Exception as error:
                    raised.append(f"{hook.name}, {name}: {type(error).__name__}")
    return Outcome(held=not raised and tried > 60, measured=f"{tried} tries, {len(raised)} raised: {raised[:8]}"[:400])


def _flood(kind: str) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        if kind == "bomb":
            packed = gzip.compress(bytes(400 << 20), 1)
            connection.sendall(http(packed, "Content-Encoding: gzip"))
        elif kind == "endless":
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(400):
                connection.sendall(bytes(1 << 20))
        elif kind == "drip":
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(60):
                connection.sendall(b" ")
                time.sleep(0.5)

    return answer


@attack(
    "D203",
    "d",
    "the API server and a webhook's receiver answer `respond` 400 MB, a gzip bomb of 400 MB, a byte each half second",
    asked="bounded memory, and each act over within 15 s",
    limit_s=240,
    long=True,
)
def floods_of_api_servers(folder: Path) -> Outcome:
    worst, slowest, raised = 0, 0.0, []
    for kind in ("bomb", "endless", "drip"):
        with answering(_flood(kind)) as (url, _):
            for hook, operation in (
                (_kubernetes(url, folder), HookOperation.DRAIN_NODE),
                (WebhookHook(url, "s" * 32, tries=1, timeout_s=0.5), HookOperation.TELL),
            ):
                forget_peak()
                before, began = peak_mb(), time.monotonic()
                try:
                    hook.do(_act(operation))
                except Exception as error:
                    raised.append(f"{kind}: {type(error).__name__}")
                worst, slowest = max(worst, peak_mb() - before), max(slowest, time.monotonic() - began)
    return Outcome(held=worst < 64 and slowest < 15 and not raised,
                   measured=f"+{worst} MB, the slowest {slowest:.1f} s, raised {raised}")  # fmt: skip


@attack(
    "D204",
    "d",
    "the API server, a webhook's receiver and Grafana redirect to another host, for GET, POST and PATCH, 301 to 308",
    asked="no token and no incident goes to the other host",
    limit_s=90,
)
def redirected_tokens(folder: Path) -> Outcome:
    from whichrank.grafana.site import GrafanaSite

    told = []
    with answering(http(b"{}")) as (there, asked):
        there = there.replace("127.0.0.1", "localhost")  # another host's name
        for status in ("301 x", "302 x", "303 x", "307 x", "308 x"):
            with answering(http(b"{}", f"Location: {there}/x", status=status)) as (url, _):
                calls: list[Callable[[], object]] = [
                    lambda url=url: _kubernetes(url, folder).do(_act(HookOperation.DRAIN_NODE)),  # type: ignore[misc]
                    lambda url=url: _kubernetes(url, folder).do(_act(HookOperation.MARK_JOB, "ns/name")),  # type: ignore[misc]
                    lambda url=url: WebhookHook(url, "s" * 32, tries=1, timeout_s=0.5).do(_act(HookOperation.TELL)),  # type: ignore[misc]
                    lambda url=url: GrafanaSite(url, _TOKEN).health(),  # type: ignore[misc]
                    lambda url=url: GrafanaSite(url, _TOKEN).annotate(
                        begin_ms=1, end_ms=2, tags=["t"], text="incident"
                    ),  # type: ignore[misc]
                ]
                for number, call in enumerate(calls):
                    count = len(asked)
                    with contextlib.suppress(Exception):
                        call()
                    new = asked[count:]
                    if any(_TOKEN.encode() in each or b"incident" in each or b"PATCH" in each for each in new):
                        told.append((number, status[:3], "token" if any(_TOKEN.encode() in e for e in new) else "text"))
    return Outcome(held=not told, measured=f"(call, status, what went there): {told or 'nothing'}"[:300])


@attack(
    "D205",
    "d",
    "scontrol shows a node with 300 MB, without an end, with a grandchild that keeps its output open",
    asked="bounded memory and time",
    limit_s=120,
    long=True,
)
def scontrol_without_end(folder: Path) -> Outcome:
    ways = {
        "300 MB": "head -c 300000000 /dev/zero",
        "errors": "head -c 300000000 /dev/zero >&2; exit 1",
        "one line": "head -c 300000000 /dev/zero | tr '\\0' 'x'",
        "grandchild": "sleep 40 & echo State=IDLE",
        "endless": "yes State=IDLE",
    }
    worst, slowest, bad = 0, 0.0, []
    for name, text in ways.items():
        words = ("/bin/sh", "-c", text)
        hook = Slurm(Commands(drain=words, undrain=words, requeue=words, show=words), timeout_s=3.0)
        forget_peak()
        before, began = peak_mb(), time.monotonic()
        try:
            hook.do(_act(HookOperation.RESTART_JOB, "4711"))
        except Exception as error:
            bad.append(f"{name}: {type(error).__name__}")
        took, more = time.monotonic() - began, peak_mb() - before
        if took > 10 or more > 64:
            bad.append(f"{name}: {took:.0f} s, +{more} MB")
        worst, slowest = max(worst, more), max(slowest, took)
    return Outcome(held=not bad, measured=f"+{worst} MB, {slowest:.1f} s; {bad}"[:300])


class _Topic:
    """A consumer, or a client, that gives what was put there."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages


@attack(
    "C201",
    "c",
    "an agent answers `whichrank evidence` with .bashrc, a name that is there, ESC, a gzip bomb, broken gzip",
    asked="only new, safe names below --out; bounded; no traceback",
    limit_s=60,
)
def answers_of_an_agent(folder: Path) -> Outcome:
    from types import SimpleNamespace

    from whichrank.commands.services import evidence as command
    from whichrank.telemetry.evidence_pieces import EvidencePiece, encode_evidence
    from whichrank.telemetry.records import Identity

    def answer(name: str, content: bytes, form: str = "") -> Any:
        piece = EvidencePiece(identity=Identity(node="n"), request_id="r", action="ring", name=name, format=form,
                              time_ns=1, content=content, piece=0, pieces=1, incident="")  # fmt: skip
        return SimpleNamespace(value=encode_evidence(piece))

    precious = folder / "precious"
    bad, worst = [], 0
    cases = {
        ".bashrc": (".bashrc", b"evil", ""),
        "there": ("there.txt", b"evil", ""),
        "a link": ("link.txt", b"evil", ""),
        "ESC": ("a\x1b]0;x\x07\nb", b"evil", ""),
        "option": ("-rf", b"evil", ""),
        "dots": ("..", b"evil", ""),
        "bomb": ("r.gz", gzip.compress(bytes(200 << 20), 1), "ring-events.gz"),
        "broken gzip": ("r.gz", b"no gzip", "ring-events.gz"),
        "cut gzip": ("r.gz", gzip.compress(os.urandom(4096))[:2000], "ring-events.gz"),
        "damaged gzip": ("r.gz", gzip.compress(b"x" * 9)[:12] + b"\xff" * 20, "ring-events.gz"),
        "odd rows": ("r.gz", gzip.compress(os.urandom(4097)), "ring-events.gz"),
    }
    for case, (name, content, form) in cases.items():
        out = folder / f"out-{case.replace(' ', '-')}"
        out.mkdir()
        precious.write_text("of root")
        (out / "there.txt").write_text("own")
        (out / "link.txt").symlink_to(precious)
        forget_peak()
        before = peak_mb()
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                command._write_files(iter([answer(name, content, form)]), "r", out, 0, "n")  # noqa: SLF001
        except OSError:
            pass  # the command makes a line of it
        except Exception as error:
            bad.append(f"{case}: {type(error).__name__}")
        worst = max(worst, peak_mb() - before)
        names = {path.name for path in out.iterdir()}
        if (out / "there.txt").read_text() != "own" or precious.read_text() != "of root":
            bad.append(f"{case}: another file is overwritten")
        if odd := [each for each in names if not each.isprintable() or each.startswith((".", "-"))]:
            bad.append(f"{case}: made {odd!r}")
    return Outcome(held=not bad and worst < 200, measured=f"{bad or 'safe'}, +{worst} MB"[:300])


@attack(
    "D206",
    "d",
    "`dlq list` and `dlq show` of letters whose key, reason and stamp hold ESC, line ends, markup, odd digits",
    asked="printable, no markup read, no traceback",
    limit_s=60,
)
def odd_letters(folder: Path) -> Outcome:
    from types import SimpleNamespace

    from whichrank.commands.services import dlq
    from whichrank.telemetry import attributes as names

    evil = "\x1b]0;PWN\x07\nwhichrank: FORGED [link=http://evil]x[/link] [/nothing] \u202e"
    letters: list[Any] = []
    module: Any = dlq
    for stamp in (b"1", "²".encode(), b"9" * 30, b"9" * 5000):
        headers = {names.DLQ_REASON: evil.encode(), names.DLQ_TOPIC: evil.encode(), names.DLQ_STAMP_NS: stamp,
                   names.DLQ_BYTES: stamp, names.DLQ_PARTITION: evil.encode(), names.DLQ_OFFSET: b"1"}  # fmt: skip
        letters.append(SimpleNamespace(partition=0, offset=len(letters), headers=headers, stamp_ns=1, key=evil.encode(),
                                       value=evil.encode() * 3))  # fmt: skip
    kept = module.make_client, module.read_whole
    module.make_client = lambda settings: None
    module.read_whole = lambda client, topic: iter(letters)
    options: Any = SimpleNamespace(kafka_settings=lambda: None)
    bad = []
    try:
        shown: dict[str, Callable[[], object]] = {
            "list": lambda: dlq.dlq_list(options, limit=10, as_json=False),
            "list --json": lambda: dlq.dlq_list(options, limit=10, as_json=True),
            "show": lambda: dlq.dlq_show(options, "0/0", raw=False),
        }
        for what, act in shown.items():
            out = io.StringIO()
            try:
                with contextlib.redirect_stdout(out):
                    act()
            except Exception as error:
                bad.append(f"{what}: {type(error).__name__}: {error}"[:80])
                continue
            said = out.getvalue()
            if "\x1b" in said or any(line.startswith("whichrank: FORGED") for line in said.splitlines()):
                bad.append(f"{what}: raw")
            if "json" not in what and "[link=" not in said.replace("\n", ""):
                bad.append(f"{what}: markup is read")
            if "json" in what:
                json.loads(said)
    finally:
        module.make_client, module.read_whole = kept
    return Outcome(held=not bad, measured=f"{bad or 'shown as it is'}"[:300])
