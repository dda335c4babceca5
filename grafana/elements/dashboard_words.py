"""What several dashboards share: labels, uids, selections, the table of incidents."""

from __future__ import annotations

from collections.abc import Sequence

from ...telemetry import attributes as names
from .dashboard import TextVariable, Variable
from .metric_names import label_name, prometheus_name
from .panels import BAD, GOOD, ODD, Panel, Query, board, link, table, thresholds

OVERVIEW, JOB, INCIDENT, NODE, FLEET, GOODPUT, PIPELINE, EXPORTERS = (
    f"whichrank-{name}" for name in ("overview", "job", "incident", "node", "fleet", "goodput", "pipeline", "exporters")
)

CLUSTER_LABEL, JOB_LABEL, NODE_LABEL, RANK_LABEL = (
    label_name(name) for name in (names.CLUSTER_ID, names.JOB_ID, names.NODE_ID, names.RANK)
)
INCIDENT_LABEL, KIND_LABEL, SEVERITY_LABEL, BUCKET_LABEL = (
    label_name(name)
    for name in (names.INCIDENT_ID, names.INCIDENT_KIND, names.INCIDENT_SEVERITY, names.INCIDENT_BUCKET)
)
SUSPECT_RANK_LABEL, SUSPECT_NODE_LABEL = label_name(names.SUSPECT_RANK), label_name(names.SUSPECT_NODE)
ACTIVE = prometheus_name(names.METRIC_INCIDENT_ACTIVE)
RANK_STEP = prometheus_name(names.METRIC_RANK_STEP)

#: In LogsQL, where attributes keep their names: events of incidents; and what no list of lines has a use for.
OF_AN_INCIDENT = f"{names.INCIDENT_ID}:*"
WITHOUT_DOCUMENT = f"| delete {names.INCIDENT_DOCUMENT}"

#: Of one job, as chosen above.
OF_JOB = f'{{{JOB_LABEL}=~"$job"}}'
OF_NODE = f'{{{NODE_LABEL}=~"$node"}}'

JOBS = Variable(name="job", label="Job", query=f"label_values({RANK_STEP}, {JOB_LABEL})")
ONE_JOB = Variable(name="job", label="Job", query=f"label_values({RANK_STEP}, {JOB_LABEL})", every=False)
NODES = Variable(name="node", label="Node", query=f"label_values({RANK_STEP}, {NODE_LABEL})", every=False)
INCIDENT_ID = TextVariable(name="incident", label="Incident")

SEVERITY = {
    "matcher": {"id": "byName", "options": "Severity"},
    "properties": [
        {"id": "custom.cellOptions", "value": {"type": "color-background"}},
        {
            "id": "mappings",
            "value": [
                {
                    "type": "value",
                    "options": {
                        "page": {"color": BAD, "index": 0},
                        "ticket": {"color": ODD, "index": 1},
                        "info": {"color": GOOD, "index": 2},
                    },
                }
            ],
        },
    ],
}


def incidents_table(title: str, description: str, selection: str = "", *, height: int = 8, width: int = 24) -> Panel:
    """A table of open incidents, each with links to its own page, its job's and its node's.

    selection: label matchers.
    """
    labels = (
        *(INCIDENT_LABEL, SEVERITY_LABEL, KIND_LABEL, BUCKET_LABEL),
        *(JOB_LABEL, SUSPECT_RANK_LABEL, SUSPECT_NODE_LABEL, CLUSTER_LABEL),
    )
    shown = {
        SEVERITY_LABEL: "Severity",
        INCIDENT_LABEL: "Incident",
        KIND_LABEL: "Kind",
        JOB_LABEL: "Job",
        SUSPECT_RANK_LABEL: "Rank",
        SUSPECT_NODE_LABEL: "Node",
        BUCKET_LABEL: "Bucket",
        CLUSTER_LABEL: "Cluster",
    }
    ways = {
        "Incident": link("What is known of it", board(INCIDENT, incident="${__value.raw}")),
        "Job": link("The job", board(JOB, job="${__value.raw}")),
        "Node": link("The node", board(NODE, node="${__value.raw}")),
    }
    return table(
        title,
        description,
        Query(expr=" or ".join(_open(labels, selection, each) for each in _URGENT), instant=True, as_table=True),
        columns=shown,
        transformations=[{"id": "sortBy", "options": {"sort": [{"field": "Value", "desc": True}]}}],
        width=width,
        height=height,
        empty="No incident is open",
        overrides=[
            SEVERITY,
            *(
                {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "links", "value": [way]}]}
                for name, way in ways.items()
            ),
        ],
    )


#: How urgent each severity is, the most urgent one first.
_URGENT = {"page": 3, "ticket": 2, "info": 1}


def _open(labels: Sequence[str], selection: str, severity: str) -> str:
    """Those of one severity, with how urgent it is as their value: rows are sorted by it."""
    matchers = [matcher for matcher in (selection[1:-1], f'{SEVERITY_LABEL}="{severity}"') if matcher]
    return f"(max by ({', '.join(labels)}) ({ACTIVE}{{{', '.join(matchers)}}}) > 0) * {_URGENT[severity]}"


#: None is good; one is somebody's affair.
NONE_IS_GOOD = thresholds((None, GOOD), (1, BAD))
