"""One incident: what happened, why we believe so, who only looks guilty, what it cost, what to do."""

from __future__ import annotations

from functools import partial

from ...telemetry import attributes as names
from ...telemetry.trust import IdBy
from ..elements.dashboard import Dashboard
from ..elements.dashboard_words import (
    ACTIVE,
    INCIDENT,
    INCIDENT_ID,
    INCIDENT_LABEL,
    OF_AN_INCIDENT,
    WITHOUT_DOCUMENT,
    incidents_table,
)
from ..elements.panels import BAD, GOOD, LogQuery, LogStore, Panel, Query, events, number, section, thresholds, words

#: What is never acted on.
_CLAIMED = " (an id that only the job itself claims)"
_CLAIMED_LOKI = (
    f'{{{{ if $d.job.id_by }}}}{{{{ if eq $d.job.id_by "{IdBy.CLAIMED.value}" }}}}{_CLAIMED}{{{{ end }}}}{{{{ end }}}}'
)
#: Of the one that is shown; nothing while none is.
_CHOSEN = f'{names.INCIDENT_ID}:="$incident" {OF_AN_INCIDENT}'
_CHOSEN_LOKI = f'{{service_name=~".+"}} | {INCIDENT_LABEL}=`$incident`'
#: Each revision carries the whole document, of which both stores read JSON.
_DOCUMENT_LOKI = "$d := fromJson .whichrank_incident_document"


def dashboard(logs: LogStore) -> Dashboard:
    """The dashboard of one incident, whose revisions are read from ``logs``."""
    newest = partial(_newest, logs)
    return Dashboard(
        uid=INCIDENT,
        title="incident",
        description="One incident: what happened, why, who only looks guilty, what it cost and what to do.",
        variables=[INCIDENT_ID],
        since="now-24h",
        panels=[
            number(
                "State",
                "1 while it is open; 0 for five minutes after its end; nothing later.",
                Query(expr=f'max({ACTIVE}{{{INCIDENT_LABEL}="$incident"}})', instant=True),
                unit="short",
                width=3,
                empty="over, or not known",
                limits=thresholds((None, GOOD), (1, BAD)),
                mappings=[
                    {
                        "type": "value",
                        "options": {"1": {"text": "open", "index": 0}, "0": {"text": "resolved", "index": 1}},
                    }
                ],
            ),
            newest(
                "In one sentence",
                "Kind, suspect, place; its state; how sure. A line for each suspect.",
                "kind, state, severity, suspects, confidence, job.id, job.id_by, job.now",
                "| unroll (suspects) | unpack_json from suspects fields (scope, id, node, gpu)"
                ' | format if (node:* gpu:*) " (<node>, <gpu>)" as place'
                ' | format if (node:* gpu:"") " (<node>)" as place | format if (node:"" gpu:*) " (<gpu>)" as place'
                ' | format if (id:*) "<scope> <id><place>" as suspect | format if (id:"") "nobody" as suspect'
                f' | format if (job.id_by:="{IdBy.CLAIMED.value}") "{_CLAIMED}" as claimed'
                ' | format "<kind>, <state>, <severity>: <suspect> - confidence <confidence>'
                ' - job <job.id><claimed> is <job.now>"',
                "{{ $d.kind }}, {{ $d.state }}, {{ $d.severity }}: {{ range $d.suspects }}{{ .scope }} {{ .id }} "
                "({{ if .node }}{{ .node }}{{ end }}{{ if .gpu }}, {{ .gpu }}{{ end }}) {{ end }}"
                "- confidence {{ $d.confidence }}"
                f" - job {{{{ $d.job.id }}}}{_CLAIMED_LOKI} is {{{{ $d.job.now }}}}",
                width=21,
                height=4,
            ),
            newest(
                "What to do",
                "The advice, who may do it, and what it has cost so far.",
                "advice.action, advice.by, advice.text, cost.gpu_seconds",
                '| format if (advice.action:*) "<advice.action> (<advice.by>): <advice.text>" as advice'
                ' | format if (cost.gpu_seconds:*) " - <cost.gpu_seconds> GPU seconds lost" as cost'
                ' | format "<advice><cost>"',
                "{{ if $d.advice }}{{ $d.advice.action }} ({{ $d.advice.by }}): {{ $d.advice.text }}{{ end }}"
                "{{ if $d.cost }} - {{ $d.cost.gpu_seconds }} GPU seconds lost{{ end }}",
                height=4,
            ),
            section("Why"),
            newest(
                "Evidence, in its order",
                "What was seen, where, and what it means; what was measured, and who could have written it: the "
                "kernel, a driver, an agent, the scheduler, or the user (the job's own processes).",
                *_each(
                    "evidence",
                    "source, shows, signal, trust",
                    "<source>: <shows> [<signal><said>]",
                    '| format if (trust:*) ", <trust>" as said',
                ),
                "{{ range $d.evidence }}{{ .source }}: {{ .shows }} [{{ .signal }}"
                "{{ if .trust }}, {{ .trust }}{{ end }}]\n{{ end }}",
                width=12,
                height=10,
            ),
            newest(
                "Ruled out",
                "Who looks guilty and is not, and why.",
                *_each("ruled_out", "who, looks_guilty, because", "<who> looks guilty (<looks_guilty>): <because>"),
                "{{ range $d.ruled_out }}{{ .who }} looks guilty ({{ .looks_guilty }}): {{ .because }}\n{{ end }}",
                width=12,
                height=10,
            ),
            section("Who else"),
            newest(
                "Jobs",
                "Every job concerned, with its role.",
                *_each("jobs", "id, role", "<id>: <role>"),
                "{{ range $d.jobs }}{{ .id }}: {{ .role }}\n{{ end }}",
                width=12,
                height=6,
            ),
            newest(
                "History",
                "Earlier incidents of the same suspect, and the last change before.",
                "history.suspect_incidents, history.last_change",
                "| format if (history.suspect_incidents:*)"
                ' "earlier incidents of the suspect in this job: <history.suspect_incidents>" as earlier'
                ' | format if (history.last_change:*) "; last change: <history.last_change>" as change'
                ' | format "<earlier><change>"',
                "{{ if $d.history }}earlier incidents of the suspect in this job: {{ $d.history.suspect_incidents }}"
                "{{ if $d.history.last_change }}; last change: {{ $d.history.last_change }}{{ end }}{{ end }}",
                width=12,
                height=6,
            ),
            section("How it went"),
            events(
                "Revisions",
                "Each time something was learned, the newest first. `trace` leads to the suspect's bad step.",
                LogQuery(logsql=f"{_CHOSEN} {WITHOUT_DOCUMENT}", logql=_CHOSEN_LOKI),
                logs,
                height=8,
                empty="Fill in an incident above, or choose one from the table",
            ),
            incidents_table("Other open incidents", "For going on to another one.", height=6),
            words(
                "On paper",
                "The same in a terminal: `whichrank incidents show ID`; with all evidence in one archive: "
                "`whichrank incidents export ID`. Was it something else? "
                "`whichrank incidents label ID --cause ... --wrong`.",
            ),
        ],
    )


def _each(field: str, of_it: str, template: str, more: str = "") -> tuple[str, str]:
    """A line for each entry of a list of the document, in its order: (fields, pipes). more: pipes before the line."""
    first, *_ = of_it.split(",")
    pipes = f"| unroll ({field}) | unpack_json from {field} fields ({of_it}) | filter {first}:* {more}".rstrip()
    return field, f'{pipes} | format "{template}"'


def _newest(
    logs: LogStore,
    title: str,
    description: str,
    fields: str,
    pipes: str,
    template: str,
    *,
    height: int,
    width: int = 24,
) -> Panel:
    """Of the newest revision alone. fields, pipes: of its document, in LogsQL. template: the same for Loki."""
    query = LogQuery(
        logsql=f"{_CHOSEN} {names.INCIDENT_DOCUMENT}:* | last 1 by ({names.INCIDENT_REVISION})"
        f" | unpack_json from {names.INCIDENT_DOCUMENT} fields ({fields}) {pipes} | filter _msg:* | fields _time, _msg",
        logql=f"{_CHOSEN_LOKI} | line_format `{{{{ {_DOCUMENT_LOKI} }}}}{template}`",
        loki_lines=1,
    )
    made = events(
        title,
        description,
        query,
        logs,
        width=width,
        height=height,
        empty="Fill in an incident above, or choose one from the table",
    )
    made["options"] |= {"showTime": False, "enableLogDetails": False}
    return made
