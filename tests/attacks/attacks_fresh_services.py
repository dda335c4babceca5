"""Strangers at the ports of services, and files of services that are other things than they were."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import socket
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.attacks.a_judge import CLUSTER, VICTIM, Judge, forget_peak, in_judges_memory, peak_mb
from tests.attacks.attacks_peers import Hub
from tests.attacks.register import Outcome, attack
from whichrank.agents.base.priority import Priority
from whichrank.agents.publish.spool import Outgoing, Spool
from whichrank.commands.incident_service.service_pages import ServicePages
from whichrank.commands.support.health_server import HealthServer
from whichrank.processors.runner_service import Role, ServiceHealth


def _ask(port: int, request: bytes, timeout_s: float = 5.0) -> bytes:
    data = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(request)
        while more := connection.recv(1 << 16):
            data += more
            if len(data) > 1 << 20:
                break
    return data


def _health() -> ServiceHealth:
    from dataclasses import MISSING, fields

    odd = {"role": Role.LEADER, "trouble": None, "caught_up": True}
    values: dict[str, Any] = {}
    for field in fields(ServiceHealth):
        if field.default is MISSING and field.default_factory is MISSING:
            values[field.name] = odd.get(field.name, 0)
    return ServiceHealth(**values)


_REQUESTS = [
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    b"GET " + b"/" * 70000 + b" HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00" * 50,
    b"GET /\x1b]0;x\x07 HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n",
    b"\x1b[31mwhichrank: FORGED\r\n\r\n",
    b"GET /healthz\r\n",
    b"BREW /healthz HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 70000 + b"\r\n\r\n",
    b"\r\n\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n" * 50,
    b"GET http://169.254.169.254/ HTTP/1.1\r\n\r\n",
    b"HEAD /metrics HTTP/1.1\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\n\r\n",
    b"\xff\xfe\x00" * 100,
    b"GET /healthz HTTP/1.1\nHost: y\n\n",
]


@attack(
    "B201",
    "b",
    "17 odd requests, three times each, to the health port of `process` and of `notify`; half of them break off",
    asked="not a line of log each; no file, no stack, no name of the machine in an answer; a probe is answered",
    limit_s=60,
)
def odd_requests(folder: Path) -> Outcome:
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger().addHandler(handler)
    process = HealthServer("127.0.0.1", 0, _health)
    state: Any = SimpleNamespace(turned_s=time.monotonic(), trouble=None, caught_up=True)
    nothing: Any = _Nothing()
    notify = ServicePages("127.0.0.1", 0, lambda: state, nothing, hung_s=60)
    leaks = []
    with contextlib.redirect_stderr(said):
        for port in (process.port, notify.port):
            for request in _REQUESTS * 3:
                answer = _ask(port, request, 0.3)
                if b"Traceback" in answer or b"root:x:" in answer or b"Python/" in answer:
                    leaks.append(request[:20])
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", port), timeout=1) as connection,
                ):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    connection.send(request[:30])
        began = time.monotonic()
        good = b"200 OK" in _ask(process.port, b"GET /healthz HTTP/1.1\r\n\r\n")
        took = time.monotonic() - began
        process.close()
        notify.close()
    lines = len(said.getvalue().splitlines())
    return Outcome(
        held=lines <= 2 and good and took < 2 and not leaks,
        measured=f"{lines} lines, leaks: {len(leaks)}, a probe in {took:.2f} s: {good}",
    )


class _Nothing:
    def collect(self) -> list[object]:
        return []


@attack(
    "B202",
    "b",
    "8 strangers ask /metrics of `process` as fast as they can, for five seconds",
    asked="they take less than half of a core from the service",
    limit_s=40,
)
def metrics_flood(folder: Path) -> Outcome:
    server = HealthServer("127.0.0.1", 0, _health)
    readable, stop = os.pipe()
    children = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    _ask(server.port, b"GET /metrics HTTP/1.1\r\n\r\n", 1.0)
            os._exit(0)
        children.append(pid)
    before = time.process_time()
    for pid in children:
        os.waitpid(pid, 0)
    used = (time.process_time() - before) / 5
    os.close(readable)
    os.close(stop)
    server.close()
    return Outcome(held=used < 0.5, measured=f"{used:.0%} of a core")


@attack(
    "B203",
    "b",
    "3,000 strangers say a wrong HELLO, go, or break off, one after the other, to the judge's port",
    asked="a few lines on stderr; true followers join; no memory is kept of them",
    limit_s=60,
)
def strangers_are_quiet(folder: Path) -> Outcome:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        hub = Hub()
        forget_peak()
        before = peak_mb()
        for number in range(3000):
            with contextlib.suppress(OSError):
                if number % 3:
                    hub.dial().close()
                else:
                    connection = hub.speak(secret=os.urandom(32))
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    connection.close()
        took = max(hub.joins_within(10, 2))
        more = peak_mb() - before
        threads = threading.active_count()
    lines = len(said.getvalue().splitlines())
    return Outcome(held=lines <= 3 and took < 3 and more < 30,
                   measured=f"{lines} lines, followers in {took:.2f} s, +{more} MB, {threads} threads")  # fmt: skip


@attack(
    "C202",
    "c",
    "an operator's program acknowledges and closes 30,000 incidents that are none, in 300 clusters",
    asked="bounded; the victim is judged",
    limit_s=200,
    long=True,
)
@in_judges_memory
def labels_of_unknown_incidents(folder: Path) -> Outcome:
    from whichrank.commands.run_folder.labels import finding_of
    from whichrank.commands.run_folder.people_codec import read_people_label
    from whichrank.telemetry.topics import TOPIC_WORDS

    judge = Judge(folder, keeps={VICTIM})
    judge.start_job()
    forget_peak()
    before, began = peak_mb(), time.process_time()
    for batch in range(300):
        labels = []
        for number in range(100):
            said = {
                "incident": f"{batch:08x}{number:08x}",
                "cause": "node=n1",
                "wrong": True,
                "by": "x" * 100,
                "time": 1.0,
            }
            labels.append(finding_of(read_people_label(json.dumps(said).encode()), f"{CLUSTER}{batch}"))
        judge.put(*labels, topic=TOPIC_WORDS)
    more, used = peak_mb() - before, time.process_time() - began
    judge.kill_rank()
    kinds = judge.told_kinds()
    size = sum(path.stat().st_size for path in folder.glob("state.sqlite*")) >> 20
    return Outcome(held="rank_died" in kinds and more < 100 and size < 64,
                   measured=f"+{more} MB, {used:.1f} CPU s, state {size} MB, the victim's: {kinds}")  # fmt: skip


def _state_of(sort: str, path: Path) -> None:
    if sort == "fifo":
        os.mkfifo(path)
    elif sort == "socket":
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(str(path))
    elif sort == "loop":
        path.symlink_to(path.name)
    elif sort == "device":
        path.symlink_to("/dev/zero")
    elif sort == "beyond":
        path.symlink_to("/nonexistent/folder/state")
    elif sort == "sparse":
        with open(path, "wb") as file:
            file.truncate(1 << 40)


@attack(
    "R201",
    "R",
    "at the judge's start state.sqlite is a FIFO, a socket, a loop of links, /dev/zero, a link to nothing, 1 TB sparse",
    asked="each at once: set aside, or without state with a line; it judges",
    limit_s=120,
)
def odd_states(folder: Path) -> Outcome:
    bad, took = {}, 0.0
    for sort in ("fifo", "socket", "loop", "device", "beyond", "sparse"):
        place = folder / sort
        place.mkdir()
        _state_of(sort, place / "state.sqlite")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                judge = Judge(place)
                judge.start_job()
                judge.kill_rank()
                status = 0 if "rank_died" in judge.told_kinds() else 2
            except Exception as error:
                (place / "error").write_text(f"{type(error).__name__}: {error}"[:100])
            os._exit(status)
        began = time.monotonic()
        while time.monotonic() - began < 12:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.05)
        else:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            bad[sort] = "no end"
            continue
        if status:
            told = place / "error"
            bad[sort] = told.read_text() if told.exists() else f"status {os.waitstatus_to_exitcode(status)}"
        took = max(took, time.monotonic() - began)
    return Outcome(held=not bad, measured=f"{bad or 'all judged'}, the longest {took:.1f} s"[:300])


def _message(number: int, size: int = 2000) -> Outgoing:
    return Outgoing(
        number=number,
        priority=Priority.EVIDENCE,
        topic="whichrank.blocks",
        key="k",
        value=os.urandom(size),
        stamp_ns=time.time_ns(),
    )


@attack(
    "R202",
    "R",
    "the spool's folder is moved away, a segment is cut, removed, a FIFO; odd names and ledgers at the start",
    asked="an OSError or a line, never another exception or a wait; what is whole is given back",
    limit_s=60,
)
def odd_spools(folder: Path) -> Outcome:
    bad: list[str] = []
    said: list[str] = []

    def guarded(name: str, act: Any) -> None:
        done = threading.Event()

        def work() -> None:
            try:
                act()
            except OSError:
                pass
            except Exception as error:
                bad.append(f"{name}: {type(error).__name__}: {error}"[:90])
            done.set()

        threading.Thread(target=work, daemon=True).start()
        if not done.wait(6):
            bad.append(f"{name}: no end")

    def drain(spool: Spool) -> int:
        count = 0
        while (found := spool.next("whichrank.blocks")) is not None and count < 1000:
            spool.hand_over("whichrank.blocks", found.number)
            count += 1
        return count

    def filled(name: str) -> tuple[Spool, Path]:
        place = folder / name
        spool = Spool(place, 1 << 20, said.append)
        for number in range(1, 40):
            spool.append(_message(number))
        return spool, place

    def moved() -> None:
        spool, place = filled("moved")
        place.rename(folder / "elsewhere")
        for number in range(40, 600):
            with contextlib.suppress(OSError):
                spool.append(_message(number))
        drain(spool)
        spool.settle("whichrank.blocks", 500)
        spool.write_ledger()

    def cut() -> None:
        spool, place = filled("cut")
        for path in place.glob("*.spool"):
            os.truncate(path, 3000)
        drain(spool)

    def removed() -> None:
        spool, place = filled("removed")
        for path in place.glob("*.spool"):
            path.unlink()
        drain(spool)
        spool.append(_message(90))

    def names() -> None:
        place = folder / "names"
        place.mkdir()
        os.mkfifo(place / "whichrank.blocks.0.0000000000000001.spool")
        (place / "whichrank.blocks.0.ffffffffffffffff.spool").write_bytes(b"")
        (place / "whichrank.blocks.9.0000000000000002.spool").write_bytes(os.urandom(100))
        (place / "whichrank.blocks.1.0000000000000003.spool").symlink_to("/dev/zero")
        (place / "otlp_logs.1.0000000000000003.spool").mkdir()
        (place / "x\n.1.0000000000000003.spool").write_bytes(b"x")
        spool = Spool(place, 1 << 20, said.append)
        spool.append(_message(spool.last_number + 1))
        drain(spool)

    ledgers = (
        "[]",
        "5",
        '{"settled": {"whichrank.blocks": 1e400}, "dropped": [], "giving_up": ""}',
        "[" * 100_000,
        '{"settled": {"whichrank.blocks": 99999999999999999999}, "dropped": [], "giving_up": ""}',
        '{"settled": {}, "dropped": [[99, "x", 1]], "giving_up": "../../x"}',
        "\x00" * 100,
        "9" * 5000,
        '{"settled": {}, "dropped": [[0, "x", 1e400]], "giving_up": ""}',
        '{"settled": {"a": -5}, "dropped": 1, "giving_up": 1}',
    )

    def ledger(text: str, number: int) -> None:
        place = folder / f"ledger-{number}"
        place.mkdir()
        (place / "ledger.json").write_text(text)
        spool = Spool(place, 1 << 20, said.append)
        spool.append(_message(spool.last_number + 1))
        if drain(spool) != 1:
            bad.append(f"ledger {text[:40]}: what came is not given back")

    for name, act in (("moved", moved), ("cut", cut), ("removed", removed), ("names", names)):
        guarded(name, act)
    for number, text in enumerate(ledgers):
        guarded(f"ledger {text[:50]}", partial(ledger, text, number))
    return Outcome(held=not bad, measured=f"{len(bad)}: {bad[:5]}, {len(said)} lines"[:400])
