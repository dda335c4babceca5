"""All nodes: which fail again and again, how often what fails, and what runs where."""

from __future__ import annotations

from ..elements.dashboard import Dashboard
from ..elements.dashboard_words import (
    ACTIVE,
    BUCKET_LABEL,
    FLEET,
    INCIDENT_LABEL,
    KIND_LABEL,
    NODE,
    NODE_LABEL,
    RANK_STEP,
    SEVERITY_LABEL,
    SUSPECT_NODE_LABEL,
    incidents_table,
)  # fmt: skip
from ..elements.metric_names import label_name, prometheus_name
from ..elements.panels import BAD, GOOD, ODD, Query, bars, board, lines, link, number, section, table, thresholds

_TO_NODE = link("The node", board(NODE, node=f"${{__field.labels.{SUSPECT_NODE_LABEL}}}"))


def _in_range(*by: str, only: str = "") -> str:
    """Incidents that were open at some time in the chosen range, once each."""
    labels = ", ".join((INCIDENT_LABEL, *by))
    return f"max by ({labels}) (max_over_time({ACTIVE}{only}[$__range]) > 0)"


def dashboard() -> Dashboard:
    """The dashboard of all nodes, from metrics alone."""
    collector = label_name("whichrank.collector")
    watching = prometheus_name("whichrank.collector.watching")
    version, model = label_name("hw.driver_version"), label_name("hw.model")
    info = prometheus_name("whichrank.gpu.info")
    named = f'{{{SUSPECT_NODE_LABEL}!=""}}'
    return Dashboard(
        uid=FLEET,
        title="fleet",
        description="All nodes: which fail again and again, what fails how often, which versions run.",
        since="now-7d",
        refresh="5m",
        panels=[
            number(
                "Nodes with ranks",
                "Nodes on which some job runs now.",
                Query(expr=f"count(count by ({NODE_LABEL}) ({RANK_STEP}))", instant=True),
                unit="short",
                width=5,
                empty="none",
            ),
            number(
                "Incidents in this range",
                "Causes, each counted once.",
                Query(expr=f"count({_in_range()})", instant=True),
                unit="short",
                width=5,
                empty="0",
            ),
            number(
                "Pages in this range",
                "Of them, those that asked for a person.",
                Query(expr=f'count({_in_range(only=f"""{{{SEVERITY_LABEL}="page"}}""")})', instant=True),
                unit="short",
                width=5,
                empty="0",
            ),
            number(
                "Lemons open",
                "Nodes that fail so much more often than the fleet that chance does not explain it.",
                Query(
                    expr=f'count(max by ({SUSPECT_NODE_LABEL}) ({ACTIVE}{{{KIND_LABEL}="lemon_node"}}) > 0)'
                    " or vector(0)",
                    instant=True,
                ),
                unit="short",
                width=5,
                empty="0",
                limits=thresholds((None, GOOD), (1, BAD)),
            ),
            number(
                "Blind collectors",
                "Collectors that do not see their source, over all nodes: health cannot be told there.",
                Query(expr=f"count({watching} == 0) or vector(0)", instant=True),
                unit="short",
                empty="no agent tells",
                limits=thresholds((None, GOOD), (1, ODD)),
            ),
            incidents_table("Open now", "All jobs, all clusters.", height=6),
            section("What fails again"),
            bars(
                "Nodes, by incidents that name them",
                "Incidents of the range of which the node, or a rank on it, is suspected.",
                Query(
                    expr=f"topk(20, count by ({SUSPECT_NODE_LABEL}) ({_in_range(SUSPECT_NODE_LABEL, only=named)}))",
                    legend=f"{{{{{SUSPECT_NODE_LABEL}}}}}",
                    instant=True,
                ),
                unit="short",
                height=10,
                links=[_TO_NODE],
                empty="no node was suspected",
            ),
            bars(
                "Kinds",
                "What happened, how often, in the range.",
                Query(
                    expr=f"topk(20, count by ({KIND_LABEL}) ({_in_range(KIND_LABEL)}))",
                    legend=f"{{{{{KIND_LABEL}}}}}",
                    instant=True,
                ),
                unit="short",
                height=10,
                empty="nothing happened",
            ),
            lines(
                "Open, by bucket",
                "Immediate crash, communication hang, speed regression, and what lies beside them.",
                Query(
                    expr=f"sum by ({BUCKET_LABEL}) (max by ({INCIDENT_LABEL}, {BUCKET_LABEL}) ({ACTIVE}))",
                    legend=f"{{{{{BUCKET_LABEL}}}}}",
                ),
                unit="short",
                stack=True,
                empty="none",
                min=0,
            ),
            bars(
                "Incidents per 100 nodes",
                "How often each kind happens, for the nodes that run now: for comparing clusters and weeks.",
                Query(
                    expr=f"100 * count by ({KIND_LABEL}) ({_in_range(KIND_LABEL)})"
                    f" / scalar(count(count by ({NODE_LABEL}) ({RANK_STEP})))",
                    legend=f"{{{{{KIND_LABEL}}}}}",
                    instant=True,
                ),
                unit="short",
                empty="nothing happened",
            ),
            section("What runs where"),
            table(
                "Drivers and firmware",
                "Nodes by what is installed. One version among many others is where to look after a rollout.",
                Query(expr=f"count by ({version}, {model}) ({info})", instant=True, as_table=True),
                columns={version: "Driver", model: "GPU", "Value": "GPUs"},
                width=12,
                empty="No node tells of its GPUs",
            ),
            table(
                "Collectors that are blind",
                "Which, and on how many nodes.",
                Query(expr=f"count by ({collector}) ({watching} == 0)", instant=True, as_table=True),
                columns={collector: "Collector", "Value": "Nodes"},
                width=12,
                empty="All of them see",
            ),
        ],
    )
