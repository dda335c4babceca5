"""``python -m tests.real_grafana --grafana HOME [--pictures DIR]``: what whichrank brings for Grafana, in a real one.

HOME is the folder of a Grafana that was built or unpacked (``bin/``, ``conf/``, ``public/``); it runs on loopback and
asks nobody else. A real Prometheus and VictoriaLogs (Go, the first time some minutes) hold an hour of a small cluster;
without the plug-in for VictoriaLogs (in ``HOME/plugins``, as its signed archive has it) panels of events are not run.
Then: the files of ``deploy/grafana`` as provisioning, each panel's query, an alert that fires and resolves;
``whichrank grafana sync`` into a Grafana that others use, ``annotate``; pictures where HOME has the pages that browsers
run. Exit status 1 on SHORT.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from benchmarks.panel_speed import JOB
from tests.commands.incidents.documents import make_run
from tests.commands.report.browser import chromium
from tests.real_grafana import asked, foreign, pictures
from tests.real_grafana.cluster import HOT_NODE, ended, incident
from tests.real_grafana.program import Grafana, Unanswered, has_pages, provisioned
from tests.real_grafana.stores import Stores
from tests.stack.parts.placing import DEPLOY, REPOSITORY
from whichrank.evaluation.bench.bench_report import exit_code, in_short, print_lines
from whichrank.grafana.boards import all_dashboards
from whichrank.grafana.paging import PAGES, TICKETS, VARIABLES
from whichrank.grafana.rules import RULES
from whichrank.simulator.scoring.summary import ScoreLine, not_run
from whichrank.telemetry.incident import Document, canonical_line
from whichrank.telemetry.vocabulary import Kind

_FILES = DEPLOY / "grafana"
#: Of an alert that has fired: how long Grafana may take to tell, and to say that it is over.
FIRES_S, RESOLVES_S = 30.0, 240.0


class Show:
    """Lines, as they are measured."""

    def __init__(self, home: Path, folder: Path, pictures_folder: Path | None) -> None:
        self.lines: list[ScoreLine] = []
        self._home, self._folder, self._pictures = home, folder, pictures_folder
        self.stores = Stores(folder)
        self._running: list[Grafana] = []

    def close(self) -> None:
        for each in self._running:
            each.service.kill()
        self.stores.stop()

    def _started(self, name: str, **more: object) -> Grafana:
        made = Grafana(self._home, self._folder / name, **more)  # type: ignore[arg-type]
        self._running.append(made)
        made.service.start()
        return made

    def _all(self, name: str, wrong: Mapping[str, str], wanted: str = "all") -> None:
        """One line: of these, those with "" are right."""
        bad = [f"{what}: {why}" for what, why in wrong.items() if why]
        for each in bad:
            print(f"  {name}: {each}", file=sys.stderr)
        measured = "all" if not bad else f"{bad[0][:60]}"
        share = f"{len(wrong) - len(bad)} of {len(wrong)}"
        self.lines.append(
            ScoreLine(name=name, asked=wanted, measured=measured, share=share, ok=bool(wrong) and not bad)
        )

    # --- provisioning -----------------------------------------------------------------------------------------------
    def provisioning(self) -> None:
        addresses = {
            "http://prometheus:9090": f"http://{self.stores.prometheus.address}",
            "http://victorialogs:9428": f"http://{self.stores.logs.address}",
            "/run/secrets": str(self.stores.secrets),
        }
        where = {"/var/lib/grafana-dashboards": str(REPOSITORY / "grafana" / "dashboards")}
        names = [f"{kind}/whichrank.yaml" for kind in ("datasources", "dashboards", "alerting")]
        provisioning = provisioned(
            self._folder / "ours",
            {names[0]: addresses, names[1]: where},
            {name: _FILES / "provisioning" / name for name in names},
        )
        grafana = self._started("provisioned", provisioning=provisioning)
        print(f"Grafana {grafana.version}", file=sys.stderr)
        uids = ("prometheus", "victorialogs") if asked.has_plug_in(grafana) else ("prometheus",)
        self._all("provisioned: data sources are healthy", {uid: asked.health(grafana, uid) for uid in uids})
        self._all("provisioned: dashboards, with every panel", dict(asked.dashboards(grafana)))
        page = incident(Kind.RANK_NOT_ENTERED, "communication_hang", "page", rank=7, onset=time.time() - 20.0)
        self._panels(grafana, page)
        self._all("provisioned: rules are evaluated, no error", asked.wait_for_rules(grafana))
        self._all("provisioned: nothing in the log", {line: line for line in grafana.complaints()} or {"log": ""})
        self._alert(grafana, page, "provisioned")
        grafana.service.stop()

    def _panels(self, grafana: Grafana, page: Document) -> None:
        self.stores.open(page)
        time.sleep(45.0)  # the thread tells every 5 s, Prometheus works out every 30 s
        answers = list(asked.panels(grafana, page["id"]))
        self._all("panels: each query answers", {f"{each.board} {each.panel}": each.trouble for each in answers})
        shown = [each for each in answers if (each.board, each.panel) not in asked.EMPTY_WHERE_ALL_IS_WELL]
        rows = {f"{each.board} {each.panel}": "" if each.rows else "is empty" for each in shown}
        self._all("panels: with values in them", rows)
        if not asked.has_plug_in(grafana):
            self.lines.append(not_run("panels: those of events", "each query answers", f"no plug-in {asked.PLUG_IN}"))

    def _alert(self, grafana: Grafana, page: Document, where: str) -> None:
        """It is open already; shown while it fires, and ended."""
        _, found = asked.wait_for_alert(grafana, page["id"], fires=True)
        labels = [each["labels"] for each in found]
        ok = labels == [asked.labels_of(page)]
        if not ok:
            print(f"  {where}: {labels}", file=sys.stderr)
        self.lines.append(
            ScoreLine(
                name=f"{where}: the alert of an incident",
                asked="1, its labels alone",
                measured=f"{len(found)}: {', '.join(sorted(labels[0])) if labels else '-'}"[:70],
                share=f"{int(ok)} of 1",
                ok=ok,
            )
        )
        if found:
            told = found[0]["annotations"]
            wanted = {"incident": f"{page['id']} ({page['bucket']})", "page": f"/d/whichrank-incident?var-incident={page['id']}"}  # fmt: skip  # noqa: E501
            wrong = {n: "" if told.get(n) == value else f"says {told.get(n)!r}" for n, value in wanted.items()}
            self._all(f"{where}: its annotations", wrong)
        if where == "provisioned":
            self._look(grafana, page)
        self.stores.close(page)
        seconds, left = asked.wait_for_alert(grafana, page["id"], fires=False)
        self.lines.append(
            ScoreLine(
                name=f"{where}: it resolves when the incident ends",
                asked=f"<= {RESOLVES_S:.0f} s",
                measured=f"{seconds:.0f} s",
                share=f"{int(not left)} of 1",
                ok=not left and seconds <= RESOLVES_S,
            )
        )

    def _look(self, grafana: Grafana, page: Document) -> None:
        name, wanted = "pictures: no panel shows an error", "none"
        if self._pictures is None or not has_pages(self._home) or chromium() is None:
            why = "no --pictures" if self._pictures is None else "no public/build" if chromium() else "no Chromium"
            self.lines.append(not_run(name, wanted, why))
            return
        given = {"job": JOB, "node": HOT_NODE, "incident": page["id"]}
        found = list(pictures.looks(grafana, self._pictures, given))
        for each in found:
            print(
                f"  {each.page}: {each.failed} failed, {len(each.empty)} empty {each.empty} {each.errors}",
                file=sys.stderr,
            )
        links = {link: "" if _is_filled_in(link) else "is not filled in" for each in found for link in each.links}
        self._all("pictures: links from values lead somewhere", links)
        empty = [(each.page, title) for each in found for title in each.empty]
        wrong = {f"{board} {title}": "says No data" for board, title in set(empty) - asked.EMPTY_WHERE_ALL_IS_WELL}
        self._all("pictures: no panel is empty that has data", wrong or {each.page: "" for each in found})
        bad = [each for each in found if each.failed]
        share = f"{len(found) - len(bad)} of {len(found)} pages"
        measured = f"{sum(each.failed for each in found)} panels"
        self.lines.append(ScoreLine(name=name, asked=wanted, measured=measured, share=share, ok=not bad))

    def paging(self) -> None:
        """The optional files, in a Grafana without rules: nobody is called."""
        names = ("contact-points", "policies", "templates")
        provisioning = provisioned(
            self._folder / "paged", {}, {f"alerting/{name}.yaml": _FILES / "paging" / f"{name}.yaml" for name in names}
        )
        values = dict(zip(VARIABLES, ("a" * 32, "xoxb-not-one", "C0123456789"), strict=True))
        grafana = self._started("paging", provisioning=provisioning, environment=values)
        points = {each["name"]: each for each in grafana.ask("/api/v1/provisioning/contact-points")}
        tree = grafana.ask("/api/v1/provisioning/policies")
        templates = [each["name"] for each in grafana.ask("/api/v1/provisioning/templates")]
        wrong = {
            "contact points": "" if {PAGES, TICKETS} <= set(points) else f"there are {sorted(points)}",
            "policies": "" if tree["receiver"] == TICKETS and tree["routes"][0]["receiver"] == PAGES else str(tree),
            "templates": "" if "whichrank" in templates else f"there are {templates}",
            "log": "; ".join(grafana.complaints()),
        }
        self._all("paging files: provisioned", wrong)
        grafana.service.stop()

    # --- sync -------------------------------------------------------------------------------------------------------
    def sync(self) -> None:
        grafana = self._started("others")
        addresses = {
            "prometheus": self.stores.prometheus.address,
            "victorialogs": self.stores.logs.address,
            "jaeger": "127.0.0.1:9",
        }
        password = (self.stores.secrets / "prometheus_password").read_text()
        foreign.make(grafana, {kind: f"http://{address}" for kind, address in addresses.items()}, password)
        token = grafana.token("Admin")
        before = foreign.read(grafana)
        dry = self._whichrank(grafana, token, "sync", "--dry-run", *_use())
        is_untouched = not list(_there(grafana)) and foreign.read(grafana) == before
        first = self._whichrank(grafana, token, "sync", *_use())
        second = self._whichrank(grafana, token, "sync", *_use())
        said = {
            "--dry-run": "" if dry.returncode == 0 and is_untouched else dry.stdout + dry.stderr,
            "sync": "" if first.returncode == 0 else first.stdout + first.stderr,
            "again": "" if second.stdout.strip() == "all is as it should be" else second.stdout + second.stderr,
        }
        self._all("sync: --dry-run, sync, and again: nothing", said)
        after = foreign.read(grafana)
        same = {name: "" if after[name] == content else f"{content!r} became {after[name]!r}" for name, content in before.items()}  # fmt: skip  # noqa: E501
        self._all("sync: what others keep, byte for byte", same)
        self._all("sync: dashboards in our folder", dict(asked.dashboards(grafana)))
        self._all("sync: rules are evaluated, no error", asked.wait_for_rules(grafana))
        page = incident(Kind.RANK_NOT_ENTERED, "communication_hang", "page", rank=12, onset=time.time() - 20.0)
        self.stores.open(page)
        self._alert(grafana, page, "sync")
        self._annotate(grafana, token, page)
        kept = foreign.read(grafana)
        same = {name: "" if kept[name] == content else f"{content!r} became {kept[name]!r}" for name, content in before.items()}  # fmt: skip  # noqa: E501
        self._all("at the end: what others keep, byte for byte", same)
        grafana.service.stop()

    def _annotate(self, grafana: Grafana, token: str, page: Document) -> None:
        run = self._folder / "run"
        make_run(run)
        steps = {"made": page, "closed": ended(page, time.time())}
        wrong: dict[str, str] = {}
        lines = b""
        for name, document in steps.items():
            lines += canonical_line(document)
            (run / "incidents.jsonl").write_bytes(lines)
            state = str(self._folder / f"annotate-{name}")
            said = self._whichrank(grafana, token, "annotate", "--from", str(run), "--state", state, "--once")
            there = asked.annotations_of(grafana, page["id"])
            end_ms = int((document["times"]["resolved"] or 0) * 1000)
            is_right = len(there) == 1 and there[0]["time"] == int(page["times"]["onset"] * 1000)
            is_right = is_right and (not end_ms or there[0]["timeEnd"] == end_ms)
            wrong[name] = "" if said.returncode == 0 and is_right else f"{said.stderr} {there}"
        self._all("annotate: one region, closed at its end", wrong)

    def _whichrank(self, grafana: Grafana, token: str, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("GRAFANA_", "WHICHRANK_"))
        }
        done = subprocess.run(
            [sys.executable, "-m", "whichrank.commands.main", "grafana", *words[:1], "--url", grafana.url, *words[1:]],
            env={**environment, "GRAFANA_TOKEN": token, "PYTHONWARNINGS": "ignore"},
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=120.0,
            check=False,
        )
        print(f"  whichrank grafana {' '.join(words[:2])}: {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}", file=sys.stderr)  # fmt: skip  # noqa: E501
        return done


def _is_filled_in(link: str) -> bool:
    """Whether it names a dashboard of ours, and a value for each of its variables."""
    parts = urlsplit(link)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    is_ours = parts.path.rsplit("/d/")[-1].split("/")[0] in {board.uid for board in all_dashboards()}
    return is_ours and "$" not in unquote(link) and all(given.values()) and {"from", "to"} <= set(given)


def _use() -> Sequence[str]:
    return [word for kind, uid in foreign.SOURCES.items() for word in ("--use", f"{kind}={uid}")]


def _there(grafana: Grafana) -> Iterator[str]:
    """Of what is ours, what is there."""
    paths = [f"/api/dashboards/uid/{board.uid}" for board in all_dashboards()]
    paths += [f"/api/v1/provisioning/alert-rules/{rule.uid}" for rule in RULES]
    for path in [*paths, "/api/folders/whichrank"]:
        try:
            grafana.ask(path)
        except Unanswered:
            continue
        yield path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grafana", type=Path, required=True, metavar="HOME", help="folder of a Grafana")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="for a picture of each page")
    given = parser.parse_args()
    home = given.grafana.resolve()
    with tempfile.TemporaryDirectory(prefix="whichrank-grafana-") as folder:
        show = Show(home, Path(folder), given.pictures)
        try:
            show.stores.fill()
            show.provisioning()
            show.paging()
            show.sync()
        finally:
            show.close()
            print_lines(show.lines, "whichrank in a real Grafana")
    print(f"whichrank in a real Grafana: {in_short(show.lines)}")
    return exit_code(show.lines)


if __name__ == "__main__":
    sys.exit(main())
