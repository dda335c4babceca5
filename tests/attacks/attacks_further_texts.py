"""Further texts that reach terminals, pages, chats and files: markup, templates, formats, odd documents."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.attacks.attacks_texts import PROGRAM, _document, _said
from tests.attacks.register import Outcome, attack
from tests.commands.report.large_run import START_NS, make_large_run
from whichrank.commands.incident_text.incident_panel import incident_panel
from whichrank.commands.notify.messages.notices import notice_of
from whichrank.commands.notify.receivers.alertmanager import _alert, labels_of
from whichrank.commands.notify.receivers.pagerduty import MAX_EVENT_BYTES, event
from whichrank.commands.notify.receivers.slack import _words
from whichrank.grafana.annotate import tags_of, text_of
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.incident_writing import write_incident
from whichrank.telemetry.printable import file_name
from whichrank.telemetry.redaction import redact

_MARKUP = (
    "[bold][link=http://evil]x[/link][/nope] [/] {{7*7}} {% raw %} ${7*7} {0.__class__} %s%n <!channel> "
    "<script>alert(1)"
)


def _hostile(text: str) -> dict[str, Any]:
    suspects = [
        {
            "scope": "rank",
            "id": text,
            "rank": 1,
            "node": text,
            "device": text,
            "where": {"file": text, "line": 1, "phase": text, "function": text},
        }
    ]
    return _document(
        suspects=suspects,
        cluster=text,
        kind=text,
        bucket=text,
        scope=text,
        severity="page",
        first_bad={"step": 1, "group": text, "sequence": 1, "operation": text},
        job={"id": text, "name": text, "owner": text, "owner_id": text, "now": text},
        cause={"condition": text, "text": text, "entity": text},
        advice={"action": text, "text": text, "by": text},
        evidence=[{"shows": text, "source": text, "signal": text}],
        merged_into=text,
        label={"wrong": False, "cause": text, "text": text, "by": text},
    )


@attack(
    "D101",
    "d",
    "rich, Jinja, format and shell markup in every text of an incident: panel, lines, Slack, annotation",
    asked="shown as it is",
    limit_s=60,
)
def markup(folder: Path) -> Outcome:
    incident = read_incident(_hostile(_MARKUP))
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=400).print(incident_panel(incident))
    shown = out.getvalue()
    notice = notice_of(incident, link="https://g/?i={incident}")
    slack, annotation = _words(notice), text_of(write_incident(incident), "https://g")
    bad = {
        "links": shown.count("\x1b]8;"),
        "evaluated": shown.count(" 49 "),
        "mention": slack.count("<!channel"),
        "html": annotation.count("<script"),
        "class": (shown + slack).count("<class "),
    }
    as_it_is = "{{7*7}}" in shown and "{0.__class__}" in slack
    return Outcome(held=not any(bad.values()) and as_it_is, measured=f"{bad}, shown as it is: {as_it_is}")


def _run_folder(folder: Path, text: str) -> None:
    """As an agent would have told it, with the text wherever a user chooses one: the report judges the capture."""
    make_large_run(folder, ranks=8, guilty=3, stays=True, job=text, name=text)


@attack(
    "D102",
    "d",
    "the same texts, quotes and javascript: links in `report`'s page",
    asked="no tag, handler or link",
    limit_s=90,
    long=True,
)
def page(folder: Path) -> Outcome:
    evil = "\"' onmouseover=alert(1) x='javascript:alert(1)//</script><svg/onload=alert(1)>{{7*7}}"
    _run_folder(folder, evil)
    said = _hostile(evil) | {
        "kind": "rank_died", "bucket": "immediate_crash", "scope": "rank", "merged_into": None,
        "advice": {"action": "retry", "text": evil, "by": "user"},
        "times": {"onset": START_NS / 1e9 + 60, "detected": START_NS / 1e9 + 64},
    }  # fmt: skip
    (folder / "incidents.jsonl").write_text(json.dumps(said) + "\n" + json.dumps(_hostile(evil)) + "\n")
    (folder / "run.json").write_text(json.dumps({"command": [evil], "job": evil, "run": evil, "started": evil}))
    done = subprocess.run(
        [*PROGRAM, "report", str(folder), "--out", str(folder / "r.html")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    text = (folder / "r.html").read_text() if (folder / "r.html").exists() else ""
    live = {
        "svg": len(re.findall(r"<svg/onload", text)),
        "handler": len(re.findall(r"<[^>]*[\"'\s]onmouseover=alert", text)),
        "js": len(re.findall(r"(?:href|src)=[\"']?\s*javascript", text)),
        "49": text.count("</svg>49"),
    }
    return Outcome(
        held="onmouseover" in text
        and "1 incident" in done.stderr
        and not any(live.values())
        and "Traceback" not in done.stderr,
        measured=f"{len(text)} bytes, {text.count('onmouseover')} times there as text, {live}; "
        f"{done.stderr.strip()[-80:]}",
    )


@attack(
    "D103",
    "d",
    "characters that nobody sees or that turn lines around, C1 controls, OSC 8 and line separators",
    asked="one printable line",
    limit_s=30,
)
def unseen_characters(folder: Path) -> Outcome:
    odd = [
        "a\u202eb",
        "a\u2066b\u2069",
        "a\u200bb",
        "a\u2028b",
        "a\u2029b",
        "a\x85b",
        "a\x9b31mb",
        "a\x9d0;x\x9c",
        "a\ufeffb",
        "a\x7fb",
        "a\U000e0041b",
        "a\x1b]8;;http://e\x1b\\b",
        "a\ud83db",
        "a\rwhichrank: FORGED",
    ]
    raw = []
    for text in odd:
        said = _said(text)
        incident = read_incident(_hostile(text))
        out = io.StringIO()
        with contextlib.suppress(UnicodeEncodeError):
            Console(file=out, width=300, color_system=None).print(incident_panel(incident))
        notice = notice_of(incident)
        texts = [
            notice.title,
            notice.job,
            notice.suspect,
            notice.kind,
            notice.bucket,
            notice.merged_into,
            notice.owner,
            *(row for pair in notice.rows for row in pair),
            *out.getvalue().split("\n"),
            said.rstrip("\n"),
        ]
        texts += [*labels_of(notice).values()]
        raw += [(ascii(text), ascii(each)[:60]) for each in texts if not each.isprintable()]
    return Outcome(held=not raw, measured=f"{len(raw)} not printable: {raw[:2]}"[:200])


@attack(
    "D104",
    "d",
    "a megabyte in every text, 10,000 suspects, 100,000 pieces of evidence: PagerDuty, Slack, panel",
    asked="bounded, quick",
    limit_s=60,
    long=True,
)
def large_texts(folder: Path) -> Outcome:
    document = _hostile("A" * (1 << 18))
    document["suspects"] = document["suspects"] * 40
    document["evidence"] = [{"shows": "e" * 1000, "source": "s", "signal": "x"}] * 5_000
    began = time.process_time()
    incident = read_incident(document)
    notice = notice_of(incident)
    packed = len(event(notice, "trigger", "k"))
    slack = len(_words(notice))
    tags = max((len(tag) for tag in tags_of(write_incident(incident))), default=0)
    out = io.StringIO()
    Console(file=out, width=120).print(incident_panel(incident))
    took = time.process_time() - began
    return Outcome(
        held=packed <= MAX_EVENT_BYTES and slack < 40_000 and took < 10 and tags < 2_000,
        measured=f"event {packed}, Slack {slack}, panel {len(out.getvalue())}, tag {tags}; {took:.1f} CPU s",
    )


@attack(
    "D105",
    "d",
    "incidents.jsonl with fields of all wrong types, 900 deep, numbers without end, and a line of 64 MB",
    asked="`incidents show` gives one line each, no traceback",
    limit_s=120,
    long=True,
)
def odd_documents(folder: Path) -> Outcome:
    names = [
        "suspects",
        "victims",
        "job",
        "times",
        "cause",
        "advice",
        "evidence",
        "first_bad",
        "label",
        "severity",
        "state",
        "coverage",
        "ruled_out",
        "confidence",
        "kind",
    ]
    odd: tuple[object, ...] = (7, "x", [], [[]], {}, {"a": [1]}, None, 1e308, True, [None], {"0": {}})
    lines = [
        json.dumps({**_document(id=f"{n:016x}"), name: value})
        for n, (name, value) in enumerate((name, value) for name in names for value in odd)
    ]
    lines += [
        "[" * 100_000,
        '{"id":' + "9" * 100_000 + "}",
        "{}",
        "null",
        '{"id": "\\ud83d"}',
        '{"a":' * 900 + "1" + "}" * 900,
    ]
    lines += ['{"id": "' + "x" * (64 << 20) + '"}', json.dumps(_document())]
    (folder / "incidents.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "run.json").write_text("{}")
    told = {}
    for words in (("show",), ("show", "0123456789abcdef"), ("export", "0123456789abcdef", "--out", "x.tar.gz")):
        done = subprocess.run(
            [*PROGRAM, "incidents", *words, "--from", str(folder)],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=100,
            check=False,
        )
        told[words[0] + str(len(words))] = (done.returncode, "Traceback" in done.stderr, len(done.stderr.splitlines()))
    bad = any(trace or lines_ > 60 for _, trace, lines_ in told.values())
    return Outcome(held=not bad and told["export4"][0] == 0, measured=f"status, traceback, lines: {told}")


@attack(
    "D106",
    "d",
    "names for evidence and folders: 255 bytes, dots, slashes, device names, one letter that differs",
    asked="safe, short, and different for each",
    limit_s=30,
)
def names_of_files(folder: Path) -> Outcome:
    odd = [
        "..",
        ".",
        "",
        "a/b",
        "a\\b",
        "a" * 255,
        "a" * 254 + "b",
        "é",
        "e\u0301",
        "\ud83d",
        "-rf",
        "a\0b",
        "a b",
        "a\tb",
        ".ssh",
        "CON",
        "a\nb",
        "*",
        "~",
        "$(id)",
        "a:b",
    ]
    made = [file_name(each) for each in odd]
    bad = [each for each in made if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,120}", each)]
    options = [each for each in made if each.startswith("-")]
    same = len(odd) - len(set(made))
    return Outcome(
        held=not bad and not same and not options, measured=f"{bad} unsafe, {options} options, {same} alike"[:200]
    )


@attack(
    "D107",
    "d",
    "secrets with control characters, zero-width characters and line ends within, split over rows",
    asked="masked, or broken in pieces that are no secret",
    limit_s=30,
    long=True,
)
def hidden_secrets(folder: Path) -> Outcome:
    secret = "hunter2hunter2hunter2"
    texts = [
        f"password={secret}",
        f"password\x1b[0m={secret}",
        f"PASSWORD = '{secret}'",
        f"pass\u200bword={secret}",
        f"--password {secret}",
        f"https://u:{secret}@h/x",
        f"Authorization: Bearer\t{secret}",
        f"password:\r\n{secret}",
        f"\x1b[31mpassword=\x1b[0m{secret}",
    ]
    kept = []
    for text in texts:
        notice = notice_of(read_incident(_hostile(text)))
        told = "\n".join([notice.title, notice.job, *(row for pair in notice.rows for row in pair)])
        if secret in told or secret in redact(text):
            kept.append(ascii(text.replace(secret, "S")))
    return Outcome(held=not kept, measured=f"{len(kept)} of {len(texts)} leave a secret: {kept}"[:200])


@attack(
    "D108",
    "d",
    "an incident's times are -1e18, 1e18, NaN, inf: panel, PagerDuty, Alertmanager, Slack, annotation",
    asked="told, no exception",
    limit_s=60,
)
def odd_times(folder: Path) -> Outcome:
    failed = []
    for odd in (-1e18, 1e18, float("nan"), float("inf"), 9e10, 1e300):
        document = _document(times={"onset": odd, "detected": odd, "resolved": odd, "opened": odd})
        incident = read_incident(document)
        notice = notice_of(incident)
        for name, act in (
            ("panel", partial(Console(file=io.StringIO()).print, incident_panel(incident))),
            ("pagerduty", partial(event, notice, "trigger", "k")),
            ("alertmanager", partial(_alert, notice, {}, 1.8e9, 1.8e9)),
            ("slack", partial(_words, notice)),
            ("annotation", partial(text_of, write_incident(incident), "x")),
        ):
            try:
                act()
            except (ValueError, OverflowError, OSError) as error:
                failed.append(f"{name} {odd}: {type(error).__name__}")
    return Outcome(held=not failed, measured=f"{len(failed)} fail: {failed[:4]}")
