"""``whichrank notify`` as people start it, on the folder of a run: settings, tests of receivers, kills, health."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands.incidents.documents import document, make_run
from tests.commands.notify.conftest import suspect
from tests.commands.notify.parts import APIS, SECRET, Api, PagerDutyApi, SlackApi, WebhookApi, receiver_table
from tests.ports import free_ports
from whichrank.telemetry.incident import Document, canonical_line

WHICHRANK = Path(sys.executable).with_name("whichrank")
WAIT_S = 60.0


def fresh(number: int = 1, revision: int = 1, **fields: object) -> Document:
    now = time.time()
    return document(f"{number:016x}", revision, times={"onset": now - 3.0, "detected": now}, **fields)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WHICHRANK_")},
            "WHICHRANK_NOTIFY_STATE": str(folder / "state"),
            "NOTIFY_SECRET": SECRET,
            "WHICHRANK_CONFIG": str(self.folder / "whichrank.toml"),
            "PYTHONWARNINGS": "ignore",
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def settings(self, *tables: str) -> None:
        (self.folder / "whichrank.toml").write_text("\n".join(tables))

    def command(self, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [WHICHRANK, "notify", *words],
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def service(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "service.log").open("ab") as log:
            started = subprocess.Popen(
                [WHICHRANK, "notify", "--from", self.run, *(words or ("--health", ""))],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.started.append(started)
        return started

    def said(self) -> str:
        return (self.folder / "service.log").read_text()

    def append(self, *documents: Document) -> None:
        with (self.run / "incidents.jsonl").open("ab") as file:
            file.write(b"".join(map(canonical_line, documents)))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


@pytest.fixture
def apis() -> Iterator[dict[str, Api]]:
    made = {name: kind() for name, kind in APIS.items()}
    yield made
    for api in made.values():
        api.close()


def until(question: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not question():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def test_once_tells_every_receiver_what_is_there_and_ends(bench: Bench, apis: dict[str, Api]) -> None:
    bench.settings(*(receiver_table(api, name) for name, api in apis.items()))
    make_run(bench.run, fresh(), fresh(2, severity="ticket"), fresh(3, severity="info"))
    for _ in range(3):
        done = bench.command("--from", bench.run, "--once")
        assert done.returncode == 0, done.stderr
    assert {name: len(api.pages) for name, api in apis.items()} == {
        "pagerduty": 1,
        "alertmanager": 1,
        "slack": 2,
        "webhook": 2,
    }
    assert [api.wrong for api in apis.values()] == [[], [], [], []]
    assert SECRET not in done.stderr


def test_killed_again_and_again_while_it_sends(bench: Bench, apis: dict[str, Api]) -> None:
    """SIGKILL while an answer is on its way: done there, not written down here."""
    bench.settings(*(receiver_table(api, name) for name, api in apis.items()))
    make_run(bench.run, fresh())
    for number in range(2, 6):
        for api in apis.values():
            api.slow_s = 2.0
            api.answers = ["slow"]
        counts = {name: len(api.requests) for name, api in apis.items()}
        service = bench.service()
        until(lambda: all(len(api.requests) > counts[name] for name, api in apis.items()), bench.said)  # noqa: B023
        service.kill()
        service.wait()
        bench.append(fresh(number))
    for api in apis.values():
        api.answers = []
    service = bench.service()
    until(lambda: all(len(set(api.pages)) == 5 for api in apis.values()), lambda: (bench.said(), apis["slack"].pages))
    service.send_signal(signal.SIGTERM)
    assert service.wait(timeout=WAIT_S) == 0
    assert {name: sorted(api.pages) for name, api in apis.items()} == {
        name: [f"{number:016x}" for number in range(1, 6)] for name in apis
    }


def test_as_a_service_it_tells_of_its_health(bench: Bench, apis: dict[str, Api]) -> None:
    bench.settings(receiver_table(apis["webhook"], "webhook"))
    make_run(bench.run, fresh())
    address = f"127.0.0.1:{free_ports(1)[0]}"
    bench.service("--health", address)
    until(lambda: apis["webhook"].pages == [f"{1:016x}"], bench.said)
    until(lambda: _ask(address, "/readyz")[0] == 200, bench.said)
    assert _ask(address, "/healthz")[0] == 200
    counted = 'whichrank_notify_notices_total{outcome="opened",receiver="webhook"} 1.0'
    other = 'whichrank_notify_notices_total{receiver="webhook",outcome="opened"} 1.0'
    until(lambda: any(word in _ask(address, "/metrics")[1] for word in (counted, other)), bench.said)
    bench.append(fresh(1, 2, suspects=suspect("node-8")))
    until(lambda: any("node-8" in json.dumps(told) for _, told in apis["webhook"].requests), bench.said)
    assert len(apis["webhook"].pages) == 1


def test_a_test_is_marked_and_is_over_at_once(bench: Bench, apis: dict[str, Api]) -> None:
    bench.settings(*(receiver_table(api, name) for name, api in apis.items()))
    for name, api in apis.items():
        done = bench.command("--test", name)
        assert done.returncode == 0, done.stderr
        assert "has taken a test" in done.stderr
        assert "test" in json.dumps(api.requests[0][1]).lower()
    pagerduty, slack, webhook = apis["pagerduty"], apis["slack"], apis["webhook"]
    assert isinstance(pagerduty, PagerDutyApi)
    assert set(pagerduty.alerts.values()) == {"resolved"}
    assert isinstance(slack, SlackApi)
    assert len(slack.roots) == 1
    assert isinstance(webhook, WebhookApi)
    assert {told["mark"] for told in webhook.told} == {"test"}


def test_a_test_that_is_not_taken_is_told(bench: Bench, apis: dict[str, Api]) -> None:
    bench.settings(receiver_table(apis["slack"], "slack"))
    done = bench.command("--test", "slack", NOTIFY_SECRET="another-token")
    assert done.returncode == 1
    assert "Slack answered invalid_auth" in done.stderr
    assert "another-token" not in done.stderr
    assert bench.command("--test", "nobody").returncode == 2


def test_a_shadow_gets_a_marked_copy_and_in_a_trial_nobody_else_anything(bench: Bench, apis: dict[str, Api]) -> None:
    tables = (receiver_table(apis["pagerduty"], "pagerduty"), receiver_table(apis["webhook"], "webhook", shadow=True))
    make_run(bench.run, fresh())
    bench.settings("notify_shadow = true", *tables)
    assert bench.command("--from", bench.run, "--once").returncode == 0
    assert apis["pagerduty"].requests == []
    webhook = apis["webhook"]
    assert isinstance(webhook, WebhookApi)
    assert [told["mark"] for told in webhook.told] == ["shadow"]


def test_a_second_service_of_the_same_folder_is_refused(bench: Bench, apis: dict[str, Api]) -> None:
    bench.settings(receiver_table(apis["webhook"], "webhook"))
    make_run(bench.run, fresh())
    bench.service()
    until(lambda: "tells webhook" in bench.said(), bench.said)
    second = bench.command("--from", bench.run, "--once")
    assert second.returncode == 2
    assert "another whichrank notify uses it" in second.stderr


GOOD = '[notify_receivers.hook]\nkind = "webhook"\nurl = "https://x.example/h"\nsecret_variable = "NOTIFY_SECRET"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a receiver is needed"),
        ('[notify_receivers.a]\nkind = "pager"', "notify_receivers.a.kind"),
        ('[notify_receivers.a]\nkind = "webhook"', "needs url"),
        ('[notify_receivers.a]\nkind = "slack"\nsecret_variable = "X"', "needs channel"),
        ('[notify_receivers.a]\nkind = "pagerduty"', "needs secret_file or secret_variable"),
        ('[notify_receivers.a]\nkind = "pagerduty"\nsecret_variable = "NOT_THERE"', "NOT_THERE is empty"),
        ('[notify_receivers.a]\nkind = "pagerduty"\nsecret_file = "nowhere"', "secret_file nowhere"),
        (f'[notify_receivers.a]\nkind = "pagerduty"\nsecret = "{SECRET}"', "notify_receivers.a.secret"),
        (f'[notify_receivers.a]\nkind = "alertmanager"\nurl = "https://u:{SECRET}@h/"', "without user and password"),
        (GOOD + '[[notify_routes]]\nto = ["oncall"]', "oncall: no receiver; there are hook"),
        ('notify_operations = ["opps"]\n' + GOOD, "opps: no receiver"),
        (GOOD + '[[notify_routes]]\nto = ["hook"]\nscopes = ["galaxy"]', "notify_routes.0.scopes.0"),
        ('notify_link = "https://x.example/"\n' + GOOD, "{incident}"),
    ],
)
def test_a_wrong_setting_is_one_line_without_secrets(bench: Bench, text: str, said: str) -> None:
    make_run(bench.run, fresh())
    bench.settings(text)
    refused = bench.command("--from", bench.run, "--once")
    assert refused.returncode == 2
    assert said in refused.stderr
    assert SECRET not in refused.stderr
    assert "Traceback" not in refused.stderr


def test_what_is_printed_of_the_settings_can_be_read_again(bench: Bench) -> None:
    routes = '[[notify_routes]]\nscopes = ["gpu"]\nto = ["hook", "owner"]\n[notify_owners]\n"team-*" = ["hook"]\n'
    bench.settings(GOOD + routes)
    first = bench.command("--from", "run", "--print-config")
    assert first.returncode == 0, first.stderr
    assert SECRET not in first.stdout
    bench.settings(first.stdout)
    second = bench.command("--print-config")
    assert second.returncode == 0, second.stderr
    values = [[line.partition("  #")[0].rstrip() for line in done.stdout.splitlines()] for done in (first, second)]
    assert values[0] == values[1]


def _ask(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
