"""For those who page from Grafana: contact points, the policy tree and templates, as provisioning files. Pure.

Not part of what compose mounts, and never of ``whichrank grafana sync``: provisioned policies replace the whole tree of
a Grafana. Addresses and secrets come from environment variables, which Grafana fills in when it starts.
"""

from __future__ import annotations

from typing import Any

from .elements.dashboard_words import BUCKET_LABEL, INCIDENT_LABEL

PAGES, TICKETS = "whichrank-pages", "whichrank-tickets"
#: What the files ask for, and what each is.
VARIABLES = {
    "WHICHRANK_PAGERDUTY_KEY": "integration key (Events API v2) of the service that is called",
    "WHICHRANK_SLACK_TOKEN": "token of a Slack app that may write (chat:write)",
    "WHICHRANK_SLACK_CHANNEL": "id of the channel, as C0123456789",
}
_GROUPED = ["alertname", INCIDENT_LABEL]
_TEMPLATE = """{{ define "whichrank.title" -}}
[{{ .Status }}] {{ .CommonAnnotations.summary }}
{{- if .CommonLabels.INCIDENT }}: incident {{ .CommonLabels.INCIDENT }} ({{ .CommonLabels.BUCKET }}){{ end }}
{{- end }}

{{ define "whichrank.message" }}{{ range .Alerts }}{{ .Annotations.description }}
What to do: {{ .Annotations.runbook }}
{{ if .PanelURL }}See: {{ .PanelURL }}
{{ end }}{{ end }}{{ end }}
""".replace(".INCIDENT", f".{INCIDENT_LABEL}").replace(".BUCKET", f".{BUCKET_LABEL}")


def contact_points() -> dict[str, Any]:
    """Provisioning of contact points for Slack and PagerDuty, with addresses and secrets from the environment."""
    title, message = '{{ template "whichrank.title" . }}', '{{ template "whichrank.message" . }}'
    slack = {
        "recipient": "$WHICHRANK_SLACK_CHANNEL",
        "token": "$WHICHRANK_SLACK_TOKEN",
        "title": title,
        "text": message,
    }
    pagerduty = {"integrationKey": "$WHICHRANK_PAGERDUTY_KEY", "severity": "critical", "summary": title}
    return _file(
        contactPoints=[
            _point(PAGES, _receiver("pagerduty", PAGES, pagerduty), _receiver("slack", PAGES, slack)),
            _point(TICKETS, _receiver("slack", TICKETS, slack)),
        ]
    )


def policies() -> dict[str, Any]:
    """Provisioning of the notification policies: one message an incident, at once, and its end.

    Again after half a day.
    """
    pages = {
        "receiver": PAGES,
        "group_by": _GROUPED,
        "group_wait": "0s",
        "object_matchers": [["severity", "=", "page"]],
    }
    return _file(
        policies=[
            {
                "orgId": 1,
                "receiver": TICKETS,
                "group_by": _GROUPED,
                "group_wait": "30s",
                "group_interval": "1m",
                "repeat_interval": "12h",
                "routes": [pages],
            }
        ]
    )


def templates() -> dict[str, Any]:
    """Provisioning of the words of a page: one title and one message for all receivers."""
    return _file(templates=[{"orgId": 1, "name": "whichrank", "template": _TEMPLATE}])


def _file(**content: Any) -> dict[str, Any]:
    return {"apiVersion": 1, **content}


def _point(name: str, *receivers: dict[str, Any]) -> dict[str, Any]:
    return {"orgId": 1, "name": name, "receivers": list(receivers)}


def _receiver(kind: str, point: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {"uid": f"{point}-{kind}", "type": kind, "settings": settings, "disableResolveMessage": False}
