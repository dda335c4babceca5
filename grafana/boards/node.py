"""One node: its GPUs, ports, mounts and host, what its kernel said, and which jobs ran on it."""

from __future__ import annotations

from ...telemetry import attributes as names
from ...telemetry.vocabulary import EventName
from ..elements.dashboard import Dashboard
from ..elements.dashboard_words import (
    ACTIVE,
    BUCKET_LABEL,
    INCIDENT_LABEL,
    JOB,
    JOB_LABEL,
    KIND_LABEL,
    NODE,
    NODE_LABEL,
    NODES,
    OF_NODE,
    RANK_STEP,
    SUSPECT_NODE_LABEL,
    WITHOUT_DOCUMENT,
    incidents_table,
)  # fmt: skip
from ..elements.metric_names import label_name, prometheus_name
from ..elements.panels import (
    BAD,
    GOOD,
    ODD,
    LogQuery,
    LogStore,
    Query,
    board,
    events,
    lines,
    link,
    number,
    section,
    table,
    thresholds,
)

_GPU, _MOUNT = "{{hw_id}}", "{{system_filesystem_mountpoint}}"
_WINDOW = "[$__rate_interval]"
_UP_OF_NODE = f'{OF_NODE[:-1]}, whichrank_gpu_nvlink_state="up"}}'
_SILENT = "this collector tells nothing of the node"


def dashboard(logs: LogStore) -> Dashboard:
    """The dashboard of one node; what is told of it is read from ``logs``."""
    name = prometheus_name
    collector = label_name("whichrank.collector")
    return Dashboard(
        uid=NODE,
        title="node",
        description="One node: GPUs, ports, mounts and host, its kernel's log, its conditions, and the jobs on it.",
        variables=[NODES],
        panels=[
            number(
                "Ranks here",
                "Ranks of all jobs that run on this node now.",
                Query(expr=f"count({RANK_STEP}{OF_NODE})", instant=True),
                unit="short",
                empty="none",
            ),
            number(
                "Incidents that name it",
                "Open ones of which this node, or a rank on it, is suspected.",
                Query(
                    expr=f'count(max by ({INCIDENT_LABEL}) ({ACTIVE}{{{SUSPECT_NODE_LABEL}="$node"}}) > 0)'
                    " or vector(0)",
                    instant=True,
                ),
                unit="short",
                empty="0",
                limits=thresholds((None, GOOD), (1, BAD)),
            ),
            number(
                "Collectors that see",
                "Of the node's collectors, how many see their source. A blind one is no sign of health.",
                Query(expr=f"sum({name('whichrank.collector.watching')}{OF_NODE})", instant=True),
                unit="short",
                empty="no agent tells",
            ),
            number(
                "Hottest GPU",
                "The highest temperature of a GPU on this node.",
                Query(expr=f"max({name('hw.temperature')}{OF_NODE})", instant=True),
                unit="celsius",
                empty="not told",
                limits=thresholds((None, GOOD), (80, ODD), (88, BAD)),
            ),
            number(
                "Memory left",
                "Share of the host's memory that programs can still have.",
                Query(expr=f"min({name('whichrank.memory.available.share')}{OF_NODE})", instant=True),
                unit="percentunit",
                empty="not told",
                limits=thresholds((None, BAD), (0.05, ODD), (0.15, GOOD)),
            ),
            number(
                "Clock",
                "How far the node's clock is from its time server.",
                Query(expr=f"max(abs({name('whichrank.clock.offset')}{OF_NODE}))", instant=True),
                unit="s",
                empty="not told",
                limits=thresholds((None, GOOD), (0.05, ODD), (1, BAD)),
            ),
            incidents_table(
                "Incidents that name it", "Open ones.", f'{{{SUSPECT_NODE_LABEL}="$node"}}', height=5, width=14
            ),
            table(
                "Jobs here",
                "Jobs with ranks on this node.",
                Query(expr=f"count by ({JOB_LABEL}) ({RANK_STEP}{OF_NODE})", instant=True, as_table=True),
                columns={JOB_LABEL: "Job", "Value": "Ranks"},
                width=10,
                height=5,
                empty="No rank is here now",
                overrides=[
                    {
                        "matcher": {"id": "byName", "options": "Job"},
                        "properties": [{"id": "links", "value": [link("The job", board(JOB, job="${__value.raw}"))]}],
                    }
                ],
            ),
            section("GPUs"),
            lines(
                "Temperature",
                "Of each GPU. One that is hotter than its neighbours is cooled too little.",
                Query(expr=f"max by (hw_id) ({name('hw.temperature')}{OF_NODE})", legend=_GPU),
                unit="celsius",
                empty=_SILENT,
            ),
            lines(
                "Clock of the processors",
                "Of each GPU. One that is slower than its neighbours slows the whole job.",
                Query(
                    expr=f"max by (hw_id) ({name('whichrank.gpu.speed')}{OF_NODE})",
                    legend=_GPU,
                ),
                unit="hertz",
                empty=_SILENT,
            ),
            lines(
                "Held back, by reason",
                "Share of time that the driver held a GPU's clock back: heat, power, a brake from outside.",
                Query(
                    expr=f"max by (hw_id, whichrank_gpu_reason) ({name('whichrank.gpu.throttled')}{OF_NODE}) > 0",
                    legend="{{hw_id}} {{whichrank_gpu_reason}}",
                ),
                unit="percentunit",
                empty="no GPU is held back, or the collector tells nothing",
                min=0,
            ),
            lines(
                "Busy",
                "Share of time in which a kernel ran. A GPU that waits in a collective is busy, too.",
                Query(expr=f"max by (hw_id) ({name('hw.gpu.utilization')}{OF_NODE})", legend=_GPU),
                unit="percentunit",
                empty=_SILENT,
                min=0,
                max=1,
            ),
            lines(
                "Errors of memory",
                "Corrected and uncorrected ECC errors that are new. Uncorrected: the job's numbers are doubtful.",
                Query(
                    expr="sum by (hw_id, error_type)"
                    f" (increase({name('whichrank.gpu.ecc.errors')}{OF_NODE}{_WINDOW})) > 0",
                    legend="{{hw_id}} {{error_type}}",
                ),
                unit="short",
                empty="no error, or the collector tells nothing",
                min=0,
            ),
            lines(
                "NVLink",
                "Links that are up, of each GPU. It is the same number on all of them.",
                Query(
                    expr=f"sum by (hw_id) ({name('whichrank.gpu.nvlink.links')}{_UP_OF_NODE})",
                    legend=_GPU,
                ),
                unit="short",
                empty="no NVLink, or the collector tells nothing",
                min=0,
            ),
            section("Network"),
            lines(
                "Traffic of ports",
                "Bytes a second, by port and direction.",
                Query(
                    expr=f"sum by (hw_id, network_io_direction) (rate({name('hw.network.io')}{OF_NODE}{_WINDOW}))",
                    legend="{{hw_id}} {{network_io_direction}}",
                ),
                unit="Bps",
                empty=_SILENT,
                min=0,
            ),
            lines(
                "Errors, and links that came and went",
                "New errors of ports and changes of carrier.",
                Query(
                    expr=f"sum by (hw_id, error_type) (increase({name('hw.errors')}{OF_NODE}{_WINDOW})) > 0",
                    legend="{{hw_id}} {{error_type}}",
                ),
                Query(
                    expr="sum by (hw_id)"
                    f" (increase({name('whichrank.network.carrier.changes')}{OF_NODE}{_WINDOW})) > 0",
                    legend="{{hw_id}} carrier",
                ),
                unit="short",
                empty="none, or the collector tells nothing",
                min=0,
            ),
            section("Storage and host"),
            lines(
                "How long a mount takes to answer",
                "Age of the newest look at a mount that has not come back. It grows while the mount hangs.",
                Query(
                    expr=f"max by (system_filesystem_mountpoint) ({name('whichrank.mount.probe.age')}{OF_NODE})",
                    legend=_MOUNT,
                ),
                unit="s",
                empty=_SILENT,
                min=0,
            ),
            lines(
                "Full",
                "Share of each file system that is used.",
                Query(
                    expr="sum by (system_filesystem_mountpoint) "
                    f'({name("system.filesystem.usage")}{{{NODE_LABEL}="$node", system_filesystem_state="used"}})'
                    " / sum by (system_filesystem_mountpoint) "
                    f"({name('system.filesystem.limit')}{OF_NODE})",
                    legend=_MOUNT,
                ),
                unit="percentunit",
                empty=_SILENT,
                min=0,
                max=1,
            ),
            lines(
                "Pressure",
                "Share of time in which somebody waited for processors, memory or disks.",
                Query(
                    expr=f"max by (whichrank_resource, whichrank_kind) ({name('whichrank.pressure.share')}{OF_NODE})",
                    legend="{{whichrank_resource}} {{whichrank_kind}}",
                ),
                unit="percentunit",
                empty=_SILENT,
                min=0,
            ),
            lines(
                "Load",
                "Threads that want to run, per core. Above 1 ranks wait for processors.",
                Query(expr=f"max({name('whichrank.cpu.load_per_core')}{OF_NODE})", legend="per core"),
                unit="short",
                empty=_SILENT,
                min=0,
            ),
            section("What was told"),
            events(
                "Kernel log, conditions and incidents",
                "What the node's kernel said, in the words of the rule that knew the line, and what became of it.",
                LogQuery(
                    # Evidence is files, which no line shows.
                    logsql=f'({names.NODE_ID}:="$node" or {names.SUSPECT_NODE}:="$node")'
                    f' event_name:!="{EventName.EVIDENCE.value}" {WITHOUT_DOCUMENT}',
                    logql=f'{{service_name=~".+"}} | {NODE_LABEL}="$node" or {SUSPECT_NODE_LABEL}="$node"',
                ),
                logs,
                height=10,
                empty="nothing in this time",
            ),
            events(
                "Checks of the node",
                "What whichrank check and the site's own checks found, and what a check has set up or reclaimed. With "
                "anew: it has looked, and whatever it does not name is well.",
                LogQuery(
                    logsql=f'{names.NODE_ID}:="$node" event_name:="{EventName.NODE_CONDITION.value}"'
                    f' "whichrank.source":~"^(check|site)[.]"',
                    logql=f'{{service_name=~".+"}} | {NODE_LABEL}="$node"'
                    ' | event_name=~".*[.]node[.]condition" | whichrank_source=~"(check|site)[.].*"',
                ),
                logs,
                height=8,
                empty="no check was told in this time",
            ),
            lines(
                "Incidents that named it",
                "By kind, over the range above: widen it to see whether the node is a lemon.",
                Query(
                    expr=f"count by ({KIND_LABEL}, {BUCKET_LABEL})"
                    f" (max by ({INCIDENT_LABEL}, {KIND_LABEL}, {BUCKET_LABEL})"
                    f' ({ACTIVE}{{{SUSPECT_NODE_LABEL}="$node"}}) > 0)',
                    legend=f"{{{{{KIND_LABEL}}}}}",
                ),
                unit="short",
                width=14,
                empty="none",
                min=0,
            ),
            table(
                "Collectors",
                "What the agent looks at, and whether it sees its source (1) or is blind (0).",
                Query(
                    expr=f"min by ({collector}) ({name('whichrank.collector.watching')}{OF_NODE})",
                    instant=True,
                    as_table=True,
                ),
                columns={collector: "Collector", "Value": "Sees"},
                width=10,
                empty="No agent tells",
            ),
        ],
    )
