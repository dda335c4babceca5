"""Who may read whose events: by owner, with a filter that the real VictoriaLogs adds and the reader cannot drop."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack.parts.placing import DEPLOY
from tests.stack.parts.service import eventually
from tests.stack.parts.stores import LogReaders, VictoriaLogs
from whichrank.telemetry.otlp import encode_payloads
from whichrank.telemetry.records import Event, Identity
from whichrank.telemetry.vocabulary import EventName

READERS = DEPLOY / "victorialogs" / "readers.sh"
OWNERS = ("12001", "12002")
FILTER = '{whichrank.job.owner="12001"}'
#: What a reader of 12001 might ask to see the other one's.
ASKED = (
    "*",
    "secret",
    '{whichrank.job.owner="12002"}',
    '{whichrank.job.owner="12001"} or {whichrank.job.owner="12002"}',
    '* or whichrank.job.id:="job-12002"',
    "!x or *",
    'whichrank.job.id:in({whichrank.job.owner="12002"} | fields whichrank.job.id)',
    '* | union ({whichrank.job.owner="12002"})',
    '* | join by (event_name) ({whichrank.job.owner="12002"})',
    "* | stream_context before 1000 after 1000",
    "options(ignore_global_time_filter=true) *",
    '_stream:{whichrank.job.owner=~".*"}',
)
ENDPOINTS = ("query", "hits", "facets", "field_names", "field_values", "streams", "stream_ids", "stream_field_values")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VictoriaLogs]:
    """With what agents of two owners have sent, put into streams as the Collector of compose does it."""
    logs = VictoriaLogs(tmp_path_factory.mktemp("victorialogs"))
    try:
        logs.service.start()
        for owner in OWNERS:
            _insert(logs, owner)
        eventually(lambda: len(logs.query("*")) == 2, what="the rows")
        yield logs
    finally:
        logs.service.kill()


def _insert(logs: VictoriaLogs, owner: str) -> None:
    identity = Identity(cluster="lab", job=f"job-{owner}", attempt="a", node="n", rank=0, owner=owner)
    event = Event(
        name=EventName.RANK_EXIT,
        identity=identity,
        time_ns=time.time_ns(),
        attributes={"text": f"secret of {owner}"},
    )
    request = urllib.request.Request(
        f"http://{logs.address}/insert/opentelemetry/v1/logs",
        encode_payloads([event]),
        {"Content-Type": "application/x-protobuf", "VL-Stream-Fields": "whichrank.cluster.id,whichrank.job.owner"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


@pytest.fixture(scope="module")
def readers(store: VictoriaLogs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogReaders]:
    front = LogReaders(tmp_path_factory.mktemp("readers"), store, OWNERS)
    try:
        front.service.start()
        yield front
    finally:
        front.service.kill()


def ask(address: str, endpoint: str, question: str, headers: dict[str, str] | None = None, **more: str) -> str:
    words = {"query": question, "start": "1h", "field": "whichrank.job.id", "limit": "1000", "step": "1h", **more}
    if endpoint == "query":
        words.pop("field")
    request = urllib.request.Request(
        f"http://{address}/select/logsql/{endpoint}", urllib.parse.urlencode(words).encode(), headers or {}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return f"refused: {error.code} {error.read().decode()[:200]}"


def test_jobs_and_services_make_no_streams(store: VictoriaLogs) -> None:
    rows = store.query("*")
    assert {row["_stream"] for row in rows} == {
        f'{{whichrank.cluster.id="lab",whichrank.job.owner="{owner}"}}' for owner in OWNERS
    }
    assert [row["whichrank.job.id"] for row in store.query('whichrank.job.id:="job-12002"')] == ["job-12002"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_reader_of_one_owner_sees_nothing_of_another(store: VictoriaLogs, endpoint: str) -> None:
    is_answered = False
    for question in ASKED:
        told = ask(store.address, endpoint, question, extra_stream_filters=FILTER)
        assert "12002" not in told.replace(question, ""), (question, told[:500])
        is_answered |= bool(told) and not told.startswith("refused")
    assert is_answered
    assert "12002" in ask(store.address, "query", "*"), "without the filter it is there"
    assert json.loads(ask(store.address, "query", "*", extra_stream_filters=FILTER).splitlines()[0])


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_token_reads_its_owners_rows_alone(readers: LogReaders, endpoint: str) -> None:
    """Whatever else is asked: in the body, in the address, or as another tenant."""
    headers = {"Authorization": f"Bearer {readers.tokens['12001']}"}
    other = '{whichrank.job.owner="12002"}'
    wider = {"extra_stream_filters": other, "extra_filters": "*", "hidden_fields_filters": "whichrank.job.owner"}
    is_answered = False
    for question in ASKED:
        for more in ({}, wider):
            told = ask(readers.address, endpoint, question, headers, **more)
            assert "12002" not in told.replace(question, "")
            is_answered |= bool(told) and not told.startswith("refused")
        address = f"{endpoint}?{urllib.parse.urlencode({'extra_stream_filters': other})}"
        assert "12002" not in ask(readers.address, address, question, headers).replace(question, "")
        assert "12002" not in ask(readers.address, endpoint, question, {**headers, "AccountID": "1"}).replace(
            question, ""
        )
    assert is_answered
    if endpoint == "query":
        assert "12001" in ask(readers.address, endpoint, "*", headers)
        assert "12002" in ask(readers.address, endpoint, "*", {"Authorization": f"Bearer {readers.tokens['12002']}"})


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer guess"}, {"Authorization": "Basic Og=="}])
def test_without_a_token_nothing_is_told(readers: LogReaders, headers: dict[str, str]) -> None:
    assert ask(readers.address, "query", "*", headers).startswith("refused: 40")


@pytest.mark.parametrize(
    "path",
    [
        "/select/tenant_ids",
        "/internal/select/query",
        "/insert/jsonline",
        "/select/logsql/../../internal/select/query",
        "/select/logsql/%2e%2e/tenant_ids",
        "//select/tenant_ids",
        "/select/vmui/",
        "/metrics",
        "/internal/force_flush",
        "/delete/run_task?filter=*",
    ],
)
def test_a_token_opens_nothing_but_questions(readers: LogReaders, path: str) -> None:
    request = urllib.request.Request(
        f"http://{readers.address}{path}", b"query=*", {"Authorization": f"Bearer {readers.tokens['12001']}"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    assert 400 <= refused.value.code < 405


def test_owners_that_are_none_are_refused(tmp_path: Path) -> None:
    for odd in ('1"} or {x="', "a b", "a/b/c", "$(id)", "a\nb"):
        done = subprocess.run([READERS, tmp_path, odd], capture_output=True, text=True, check=False)
        assert done.returncode == 2, odd
        assert "not a uid" in done.stderr
