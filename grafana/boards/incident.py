"""One incident: what happened, why we believe so, who only looks guilty, what it cost, what to do."""

from __future__ import annotations

from ..dashboard import Dashboard
from ..panels import BAD, GOOD, Panel, Query, events, number, section, thresholds, words
from .words import ACTIVE, INCIDENT, INCIDENT_ID, INCIDENT_LABEL, incidents_table

#: Loki's template functions read the whole document, which each revision carries.
_OF_INCIDENT = f'{{service_name=~".+"}} | {INCIDENT_LABEL}=`$incident`'
_DOCUMENT = "$d := fromJson .whichrank_incident_document"


def dashboard() -> Dashboard:
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
            _newest(
                "In one sentence",
                "Kind, suspect, place; its state; how sure.",
                "{{ $d.kind }}, {{ $d.state }}, {{ $d.severity }}: {{ range $d.suspects }}{{ .scope }} {{ .id }} "
                "({{ if .node }}{{ .node }}{{ end }}{{ if .gpu }}, {{ .gpu }}{{ end }}) {{ end }}"
                "- confidence {{ $d.confidence }} - job {{ $d.job.id }} is {{ $d.job.now }}",
                width=21,
                height=4,
            ),
            _newest(
                "What to do",
                "The advice, who may do it, and what it has cost so far.",
                "{{ if $d.advice }}{{ $d.advice.action }} ({{ $d.advice.by }}): {{ $d.advice.text }}{{ end }}"
                "{{ if $d.cost }} - {{ $d.cost.gpu_seconds }} GPU seconds lost{{ end }}",
                height=4,
            ),
            section("Why"),
            _newest(
                "Evidence, in its order",
                "What was seen, where, and what it means.",
                "{{ range $d.evidence }}{{ .source }}: {{ .shows }} [{{ .signal }}]\n{{ end }}",
                width=12,
                height=10,
            ),
            _newest(
                "Ruled out",
                "Who looks guilty and is not, and why.",
                "{{ range $d.ruled_out }}{{ .who }} looks guilty ({{ .looks_guilty }}): {{ .because }}\n{{ end }}",
                width=12,
                height=10,
            ),
            section("Who else"),
            _newest(
                "Jobs",
                "Every job concerned, with its role and its cost.",
                "{{ range $d.jobs }}{{ .id }}: {{ .role }}\n{{ end }}",
                width=12,
                height=6,
            ),
            _newest(
                "History",
                "Earlier incidents of the same suspect, and the last change before.",
                "{{ if $d.history }}earlier incidents of the suspect in this job: {{ $d.history.suspect_incidents }}"
                "{{ if $d.history.last_change }}; last change: {{ $d.history.last_change }}{{ end }}{{ end }}",
                width=12,
                height=6,
            ),
            section("How it went"),
            events(
                "Revisions",
                "Each time something was learned, the newest first. `trace` leads to the suspect's bad step.",
                _OF_INCIDENT,
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


def _newest(title: str, description: str, template: str, *, height: int, width: int = 24) -> Panel:
    """Of the newest revision alone."""
    made = events(
        title,
        description,
        f"{_OF_INCIDENT} | line_format `{{{{ {_DOCUMENT} }}}}{template}`",
        width=width,
        height=height,
        empty="Fill in an incident above, or choose one from the table",
    )
    made["targets"][0]["maxLines"] = 1
    made["options"] |= {"showTime": False, "enableLogDetails": False}
    return made
