"""No secret leaves the node: every way out of an agent, with every secret of the table, and all its bytes searched.

Each way is tried without the gate as well: then the secrets are found, so the search would see them. The ways are
listed in docs/privacy.md; a whole job of ``whichrank run`` is in ``test_no_secret_leaves_a_run.py``.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import RankProcess, Watched
from tests.agents.test_evidence_requests import files, request
from tests.agents.test_kafka_publisher import until
from tests.made_up_secrets import HARMLESS, PEM_BODY, SECRETS
from whichrank.agents.base.settings import AgentSettings
from whichrank.agents.collectors.base.collector import Collected, NodeEvent
from whichrank.agents.collectors.schedule import NodeTelemetry, Seen
from whichrank.agents.job_agent import Agent
from whichrank.agents.node_agent import NodeAgent
from whichrank.agents.node_reports import NodeReports
from whichrank.agents.privacy.redaction_filter import RedactionFilter, mask_dump, pack
from whichrank.agents.publish.kafka_publisher import KafkaPublisher
from whichrank.agents.rings.ring_file import RingFile
from whichrank.instrumentation.ring_writer import RankRecorder, RingWriter
from whichrank.telemetry import attributes as names
from whichrank.telemetry import redaction
from whichrank.telemetry import ring_layout as L
from whichrank.telemetry.node_metrics import node_metrics
from whichrank.telemetry.otlp import decode_logs, encode_payloads
from whichrank.telemetry.otlp_redaction import NO_SECRETS
from whichrank.telemetry.records import Event, Identity, Point
from whichrank.telemetry.redaction import REMOVED, redact
from whichrank.telemetry.ring_layout import cut_text
from whichrank.telemetry.topics import TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS
from whichrank.telemetry.vocabulary import EventName, HookState, Level

#: Each text with its secret in place.
TEXTS = [text.format(secret) for text, secret in SECRETS]
HALF = len({secret for _, secret in SECRETS}) // 2
#: A line that ends whatever text is before it: a private key without its own end would take the others along.
END = "-----\n"


def found_in(left: bytes) -> list[str]:
    """Secrets of the table in these bytes, as they are or as JSON has them; of several lines, any long one of them."""
    found = []
    for _, secret in SECRETS:
        forms = {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]}
        forms |= {line for form in set(forms) for line in form.replace("\\n", "\n").split("\n") if len(line) > 20}
        if any(form.strip().encode() in left for form in forms):
            found.append(secret)
    return found


@pytest.fixture(params=[True, False], ids=["gate", "no gate"])
def gate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(redaction, "_hide", lambda text: text)
        monkeypatch.setattr(redaction, "_is_secret", lambda name, value: False)
    return bool(request.param)


def check(left: bytes, *, gate: bool, at_least: int = HALF) -> None:
    """With the gate none has left; without it most have (as a whole: some texts are cut, or stand in other letters)."""
    found = set(found_in(left))
    if gate:
        places = {secret: left[max(0, left.find(secret.encode()) - 60) :][:160] for secret in found}
        assert not found, places
        assert REMOVED.encode() in left
    else:
        assert len(found) >= at_least, sorted(found)


class Ring:
    """A rank's real ring, written by this process."""

    def __init__(self, directory: Path, rank: int = 0, world: int = 1, **identity: Any) -> None:
        claims = {"launcher_pid": 1, "launcher_start_ticks": 7, "host": "here", "torch": "2.15.0", **identity}
        self.writer: RankRecorder = RingWriter.create(
            directory, rank=rank, local_rank=rank, world_size=world, identity=claims, slots=64
        )
        self.writer.track_completion(True)
        self.writer.set_level(Level.EVENTS, HookState.COLLECTIVES_HOOKED | HookState.COMPLETION_HOOKED)

    def define_group(self, number: int, text: str) -> int:
        group = {"name": f"group {number}", "desc": text, "ranks": "0-0", "size": 1, "backend": "gloo"}
        row = self.writer.define_group({**group, "ordinal": number, "timeout_s": 1800, "default": number == 0})
        self.writer.complete(row, self.writer.enqueue(row, 1, 4096, 6, -1, 0), 0, 0)
        return row

    def note(self, text: str) -> None:
        self.writer.define(L.DEFINITION_NOTE, 0, {"text": text})


@pytest.fixture
def ring(ring_directory: Path) -> Iterator[Ring]:
    made = Ring(ring_directory, script="/job/train.py --api-key=hunter2hunter2", ROLE_NAME="token=A8f9b2C3d4e5F6a7")
    yield made
    made.writer.close()


@pytest.fixture
def raising(ring_directory: Path) -> Iterator[list[Ring]]:
    """A rank for each text, which has raised an exception with it."""
    rings = [Ring(ring_directory, rank, len(TEXTS)) for rank in range(len(TEXTS))]
    for each, text in zip(rings, TEXTS, strict=True):
        each.writer.record_exception(f"RuntimeError: {text}", [("/job/train.py", 7, "train")], True)
    yield rings
    for each in rings:
        each.writer.close()


def sent(watched: AllOf) -> bytes:
    return b"".join([*watched.values, *(value for values in watched.for_people.values() for value in values)])


class AllOf(Watched):
    """Keeps every message as it came, keys too."""

    def __init__(self, directory: Path, evidence: Path, **settings: object) -> None:
        self.values: list[bytes] = []
        super().__init__(directory, evidence, **settings)

    def _publish(self, topic: str, key: str, value: bytes) -> None:
        self.values += [key.encode(), value]
        super()._publish(topic, key, value)


@pytest.fixture
def watch_all(ring_directory: Path, tmp_path: Path) -> Iterator[Callable[..., AllOf]]:
    made: list[AllOf] = []

    def make(**settings: object) -> AllOf:
        made.append(AllOf(ring_directory, tmp_path / "evidence", **settings))
        return made[-1]

    yield make
    for watched in made:
        watched.agent.close()


def kept(tmp_path: Path) -> bytes:
    """All files in the evidence folder, unpacked, and their names."""
    paths = [path for path in (tmp_path / "evidence").glob("*") if path.is_file()]
    contents = [path.read_bytes() for path in paths]
    return b"".join(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw for raw in contents) + b" ".join(
        path.name.encode() for path in paths
    )


# --- what a rank's ring tells -----------------------------------------------------------------------------------------
def test_exceptions(raising: list[Ring], watch_all: Callable[..., AllOf], tmp_path: Path, *, gate: bool) -> None:
    """Messages on the bus and their copies; and each ring that is kept because a rank raised."""
    watched = watch_all()
    watched.run_until(lambda: len(watched.events(EventName.RANK_EXCEPTION)) == len(raising), 60)
    check(sent(watched), gate=gate)
    check(kept(tmp_path), gate=gate)
    event = watched.events(EventName.RANK_EXCEPTION)[-1]
    assert (event.attributes["type"], event.attributes["line"]) == ("RuntimeError", 7)


def test_notes_groups_and_identity(ring: Ring, watch_all: Callable[..., AllOf], *, gate: bool) -> None:
    """Level events, definitions, blocks, health, spans and metrics for people."""
    watched = watch_all(
        tell_people=True, health_period_s=0.3, spans_period_s=0.1, metrics_period_s=0.5, spans_per_rank_s=1e4
    )
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    for number, text in enumerate(TEXTS[:60]):
        ring.define_group(number, text)
        ring.writer.end_step(0.5, None, 0)
        watched.run_for(0.03)  # of the 64 places of its ring none is lost
    watched.run_until(lambda: len(watched.events(EventName.GROUP_DEFINED)) == 60)
    for text in TEXTS[60:]:  # an agent remembers so many of a rank
        ring.note(text)
        ring.writer.set_level(Level.STATUS, 0)
        watched.run_for(0.04)
        ring.writer.set_level(Level.EVENTS, 0)
    watched.run_until(lambda: watched.blocks(EventName.BLOCK_COLLECTIVES))
    watched.agent.close()
    by_topic = watched.for_people
    assert all(by_topic.values())
    for of_people in by_topic.values():
        check(b"".join(of_people), gate=gate, at_least=20)
    check(sent(watched), gate=gate)
    groups = {group.uid for block in watched.blocks(EventName.BLOCK_COLLECTIVES) for group in block.groups}
    assert len(groups) == 60  # what programs read is still what it was


def test_stacks(ring_directory: Path, watch_all: Callable[..., AllOf], tmp_path: Path, *, gate: bool) -> None:
    lines = [text for text in TEXTS if "\n" not in text and PEM_BODY not in text]
    begins = range(0, len(lines), 20)
    rings = [Ring(ring_directory, rank, len(begins)) for rank in range(len(begins))]
    for ring, begin in zip(rings, begins, strict=True):
        ring.writer.record_stack([(f"/job/x {line}", 7, "f") for line in lines[begin : begin + 20]])
        ring.writer.record_exception(
            "E: x", [("/job/x.py", 8, f"f {line}") for line in lines[begin : begin + 20]], True
        )
    watched = watch_all()
    watched.run_until(lambda: len(watched.events(EventName.RANK_EXCEPTION)) == len(rings), 60)
    check(sent(watched), gate=gate)
    check(kept(tmp_path), gate=gate)
    for ring in rings:
        ring.writer.close()


def test_rings_that_are_asked_for(ring: Ring, watch_all: Callable[..., AllOf], *, gate: bool) -> None:
    """The copy is still a ring: every number, place and length is what it was."""
    for text in TEXTS:
        ring.note(text)
    ring.define_group(0, "--password hunter2")
    ring.writer.define(L.DEFINITION_ATTEMPT, 0, {"token": "B7f9b2C3d4e5F6a7A8f9"})
    ring.writer.record_exception("E: " + "x " * 2012 + "gh" + "p_Half5of1A0secret", [], False)
    watched = watch_all(requests_per_minute=9, history_s=60.0)
    watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
    watched.agent.request(request("ring"))
    watched.agent.request(request("history"))
    watched.run_until(lambda: len(files(watched)) == 2)
    copies = {file.action: gzip.decompress(file.content) for file in files(watched)}
    check(copies["ring"], gate=gate, at_least=60)
    assert (b"Half5of1A0" in copies["ring"]) is False
    original = ring.writer.path.read_bytes()
    assert len(copies["ring"]) == len(original)
    events = slice(L.HEADER_BYTES, int.from_bytes(original[L.H_DEFINITIONS_OFFSET :][:8], "little"))
    assert copies["ring"][events].count(b"\0") < len(copies["ring"][events])
    path = ring.writer.path.with_name("copy.ring")
    path.write_bytes(copies["ring"])
    copy = RingFile(path)
    found, _, problem = copy.read_definitions(0, copy.read_hot().definitions_used)
    copy.close()
    assert not problem
    assert len(found) == len(TEXTS) + 2
    assert {"token": "B7f9b2C3d4e5F6a7A8f9"} in [each.payload for each in found]  # an address, and no secret


def test_an_exception_that_was_cut_in_the_middle_of_a_secret(
    ring_directory: Path, watch_all: Callable[..., AllOf], tmp_path: Path
) -> None:
    token = "gh" + "p_Half5of1A0secret2and3more4of5it6"
    lengths = range(L.C_EXC_TEXT_MAX - 40, L.C_EXC_TEXT_MAX)
    rings = [Ring(ring_directory, rank, len(lengths)) for rank in range(len(lengths))]
    for ring, length in zip(rings, lengths, strict=True):
        ring.writer.record_exception(("E: " + "x " * 3000)[:length] + " " + token, [], True)
    watched = watch_all()
    watched.run_until(lambda: len(watched.events(EventName.RANK_EXCEPTION)) == len(rings), 60)
    for left in (sent(watched), kept(tmp_path)):
        assert b"x x x x" in left
        assert b"p_Ha" not in left
    for ring in rings:
        ring.writer.close()


# --- files ------------------------------------------------------------------------------------------------------------
def test_log_tails_and_the_kernel_log(
    ring_directory: Path, tmp_path: Path, watch_all: Callable[..., AllOf], *, gate: bool
) -> None:
    log, kernel = tmp_path / "rank.err", tmp_path / "kern.log"
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    kernel.write_text("".join(f"{stamp} n1 kernel: {text}\n{END}" for text in TEXTS))
    rank = RankProcess(ring_directory, 0, 1, log=str(log))
    try:
        log.write_text("".join(f"{text}\n{END}" for text in TEXTS))
        watched = watch_all(requests_per_minute=9, keeps_answers=True, kernel_log=str(kernel))
        watched.run_until(lambda: watched.events(EventName.RANK_STARTED))
        watched.run_for(0.3)
        watched.agent.request(request("log_tail"))
        watched.agent.request(request("kernel_log"))
        watched.run_until(lambda: len(files(watched)) == 2)
        for file in files(watched):
            check(file.content, gate=gate)
        check(kept(tmp_path), gate=gate)
    finally:
        rank.end()


def test_dumps_of_flight_recorders(*, gate: bool) -> None:
    """Whichever protocol wrote them, and also where they are cut: the same values but for the secrets."""
    entries = [{"frames": [{"name": text, "filename": text, "line": 7}], "group": ("0", text)} for text in TEXTS]
    value = {"version": "2.10", "pg_config": {"0": {"desc": "x", "ranks": "[0]"}}, "entries": entries}
    for protocol in range(2, 6):
        raw = pickle.dumps(value, protocol)
        packed = gzip.decompress(pack(raw, "dump.gz"))
        check(packed, gate=gate)
        assert len(packed) == len(raw)
        read = pickle.loads(packed)
        assert [entry["frames"][0]["line"] for entry in read["entries"]] == [7] * len(TEXTS)
        assert read["pg_config"] == value["pg_config"]
        check(mask_dump(raw[:-20]), gate=gate)


# --- the node's own ---------------------------------------------------------------------------------------------------
class Telemetry(NodeTelemetry):
    """Says what collectors would have seen."""

    def __init__(self, seen: list[Collected]) -> None:
        super().__init__((), report=print)
        self._seen = seen

    def take(self) -> list[Seen]:
        seen, self._seen = self._seen, []
        return [Seen(collector="x", collected=each) for each in seen]


def of_collectors() -> Collected:
    """Texts as events (texts of logs, labels by names that people chose) and as attributes of metrics."""
    happenings = [
        NodeEvent(name=name, time_ns=1, attributes={"event": "xid", "text": text, "told": ("x", text)})
        for text in TEXTS
        for name in (EventName.KERNEL_EVENT, EventName.JOB_LOG, EventName.CHANGE)
    ]
    labels = {"password": "correct horse battery", "rack": "r1"}
    happenings.append(NodeEvent(name=EventName.NODE_TOPOLOGY, time_ns=1, attributes=labels))
    name = "whichrank.storage.probe.age"
    name = name if name in node_metrics() else next(iter(node_metrics()))
    points = [Point(name=name, value=1.0, attributes={"mount": text}, time_ns=1) for text in TEXTS]
    return Collected(happenings=happenings, points=points)


def test_what_collectors_saw(*, gate: bool) -> None:
    messages: dict[str, bytes] = {}

    def publish(topic: str, key: str, value: bytes, priority: object) -> None:
        messages[topic] = messages.get(topic, b"") + key.encode() + value

    reports = NodeReports(
        Telemetry([of_collectors()]),
        Identity(cluster="c", node="n1"),
        publish,
        rank_processes=dict,
        request_bytes=1 << 20,
    )
    reports.turn()
    assert set(messages) == {TOPIC_BLOCKS, TOPIC_LOGS, TOPIC_METRICS}
    for left in messages.values():
        check(left, gate=gate)
    assert b"r1" in messages[TOPIC_BLOCKS]


def test_jobs_nodes_and_clusters_that_are_called_after_one(*, gate: bool) -> None:
    """Keys and resources of every message; what was one name is one name still."""
    messages: list[tuple[str, bytes]] = []
    for text in TEXTS:
        through = RedactionFilter().publish(lambda topic, key, value: messages.append((key, value)))
        identity = Identity(job=text, run=text, cluster=text, node=text, world=text)
        through(TOPIC_BLOCKS, text, encode_payloads([Event(name=EventName.RANK_EXIT, identity=identity, time_ns=1)]))
    check(b"".join(key.encode() + value for key, value in messages), gate=gate)
    for key, value in messages:
        (payload,) = decode_logs(TOPIC_BLOCKS, value)
        assert isinstance(payload, Event)
        assert key == payload.identity.job == payload.identity.node


def test_the_spool_and_kafka(raising: list[Ring], ring_directory: Path, tmp_path: Path, *, gate: bool) -> None:
    """As ``whichrank agent`` has it: what lies on the disk for Kafka is what Kafka gets."""

    def nobody() -> Any:
        raise OSError(111, "Connection refused")

    spool = tmp_path / "spool"
    publisher = KafkaPublisher(nobody, spool_directory=spool, spool_bytes=64 << 20, report=lambda line: None)
    publisher.start()
    node = NodeAgent(rings=ring_directory, own=Identity(node="n1"), publish_ranked=publisher.publish, missed_since_ns=1)
    try:
        node.turn()
        until(lambda: node.rank_processes, 20)
    finally:
        node.close(20.0)
        publisher.close(5.0)
    left = b"".join(path.read_bytes() for path in sorted(spool.rglob("*")) if path.is_file())
    check(left, gate=gate)


# --- the gate itself --------------------------------------------------------------------------------------------------
def test_what_holds_no_secret_passes_as_it_is(ring: Ring, ring_directory: Path) -> None:
    """Not one byte of it is another, blocks of numbers included."""
    raw: list[tuple[str, bytes]] = []
    agent = Agent(
        ring_directory=ring_directory,
        publish=lambda topic, key, value: raw.append((topic, value)),
        identity=Identity(job="job", node="n1"),
        settings=AgentSettings(tell_people=True, spans_period_s=0.1, metrics_period_s=0.2),
    )
    gate, changed = RedactionFilter(), 0
    ring.define_group(0, "default_pg")
    ring.note("hook x switched itself off: ValueError: 3 tokens")
    end_s = time.monotonic() + 2
    while time.monotonic() < end_s:
        ring.writer.end_step(0.5, None, 0)
        agent.wait(0.05)
        agent.poll()
    agent.close()
    for topic, value in raw:
        found = gate.message(topic, "job", value)
        assert found is not None
        changed += found[1] is not value
    assert len({topic for topic, _ in raw}) == 4
    assert (changed, len(raw) > 10) == (0, True)


def test_a_message_that_cannot_be_read_is_not_sent_and_counted() -> None:
    out: list[bytes] = []
    drops: list[str] = []
    through = RedactionFilter(drops.append).publish(lambda topic, key, value: out.append(value))
    for topic in (TOPIC_BLOCKS, TOPIC_METRICS, "otlp_spans"):
        through(topic, "job", b"\xff\xff not protobuf")
    assert (out, drops) == ([], ["gate_unreadable"] * 3)


def test_no_name_of_ours_sounds_like_a_secrets() -> None:
    """Else its values would be removed: of attributes, events and metrics."""
    own = {value for value in vars(names).values() if isinstance(value, str)} | set(node_metrics())
    value = "A8f9b2C3d4e5F6a7A8f9"
    assert sorted(name for name in own if redaction.is_secret(names.short_name(name), value)) == []
    assert {"whichrank.token"} == NO_SECRETS


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_texts_stay(text: str) -> None:
    event = Event(
        name=EventName.JOB_LOG, identity=Identity(job="j"), time_ns=1, attributes={"text": text, "class": "x"}
    )
    value = encode_payloads([event])
    found = RedactionFilter().message(TOPIC_BLOCKS, "j", value)
    assert found is not None
    assert found[1] is value


def test_texts_are_cut_between_words() -> None:
    """Wherever a limit falls, no half of a secret is left that the whole would not leave."""
    for text, secret in SECRETS:
        whole = "step 3 " * 40 + text.format(secret) + " and more of it"
        part = secret[:8]
        if len(secret) <= 8 or part in redact(whole) or PEM_BODY in secret:  # of which each line is known by itself
            continue
        for limit in range(280, len(whole)):
            assert part not in redact(cut_text(whole, limit)), (limit, text)


def test_any_text_is_looked_at_in_bounded_time() -> None:
    """1 MB without an end of line, of the parts that rules look for."""
    chance = random.Random(5)
    parts = [
        "password",
        "=",
        ":",
        '"',
        "'",
        "\\",
        " ",
        "--",
        "token",
        "://",
        "@",
        "eyJ",
        "a",
        "Z9",
        "[",
        "-----BEGIN ",
        "//",
    ]
    parts += [
        "PRIVATE KEY-----",
        "\n",
        "curl -u ",
        "mysql",
        " -p",
        "wandb login",
        " --x",
        "bearer ",
        "<value>",
        "\ue000",
        "é",
    ]
    for draw in range(6):
        few = chance.sample(parts, 1 + draw) if draw < 4 else parts
        text = "".join(chance.choice(few) for _ in range(400_000))[: 1 << 20].ljust(1 << 20, few[0][0])
        begin_s = time.thread_time()
        left = redact(text)
        took_s = time.thread_time() - begin_s
        assert took_s < 6, (few, took_s)
        assert redact(left) is not None
        assert len(redaction.mask_bytes(text[:50_000].encode())) == len(text[:50_000].encode())


def test_garbage_in_rings_and_dumps_is_no_way_out(ring: Ring) -> None:
    chance = random.Random(7)
    ring.note("--password hunter2")
    ring.writer.record_exception("E: --password hunter2", [], True)
    raw = ring.writer.path.read_bytes()
    for _ in range(300):
        damaged = bytearray(raw)
        for _ in range(chance.randrange(1, 30)):
            damaged[chance.randrange(0, 4096 if chance.random() < 0.3 else 160)] = chance.randrange(256)
        packed = pack(bytes(damaged[: chance.randrange(len(damaged)) or None]), "ring.gz")
        assert not packed or b"hunter2" not in gzip.decompress(packed)
        mask_dump(chance.randbytes(chance.randrange(2000)))
