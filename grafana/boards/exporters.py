"""What other people's exporters tell: switches, storage servers, power, services, and nodes without our agent."""

from __future__ import annotations

from ..elements.dashboard import Dashboard
from ..elements.dashboard_words import EXPORTERS
from ..elements.exporter_queries import PanelForm, exporter_query, told
from ..elements.panels import Panel, lines, section

_LEVEL, _RATE = PanelForm.LEVEL, PanelForm.RATE
_FABRIC = ("gnmi", "snmp", "ufm", "infiniband")
_NOBODY = "no exporter tells it"


def dashboard() -> Dashboard:
    """The dashboard of what comes in through the Collector, by the names that its exporters give."""
    return Dashboard(
        uid=EXPORTERS,
        title="exporters",
        description="Switches, storage servers, power and services, and nodes as other exporters see them.",
        panels=[*_switches(), *_servers(), *_around(), *_gpus(), *_hosts()],
    )


def _switches() -> list[Panel]:
    return [
        section("Switches and fabric"),
        lines(
            "Traffic of switches",
            "Bytes a second of the busiest ports.",
            exporter_query(told("hw.network.io", _RATE, *_FABRIC)),
            unit="Bps", empty=_NOBODY, min=0,
        ),
        lines(
            "Errors of switches' ports",
            "By kind, a second. Damaged frames and symbol errors: cable, transceiver or connector.",
            exporter_query(told("hw.errors", _RATE, *_FABRIC, hw_type="network")),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Congestion in switches",
            "Marks, pauses, waits for credits and discards, a second. It rises where jobs share too little.",
            exporter_query(told("whichrank.fabric.congestion", _RATE, *_FABRIC)),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Links that come and go",
            "Changes of carrier, a second.",
            exporter_query(told("whichrank.fabric.carrier.changes", _RATE)),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Ports that are down",
            "0 for a port without a link; one that nobody uses is among them.",
            exporter_query(told("hw.network.up", _LEVEL), only="< 1"),
            unit="short", empty="none, or no exporter tells it", min=0,
        ),
        lines(
            "Light of transceivers",
            "dBm received and sent. 3 dBm less is half of the light.",
            exporter_query(told("whichrank.optic.power", _LEVEL)),
            unit="dBm", empty=_NOBODY,
        ),
        lines(
            "Temperature of switches and transceivers",
            "Of the hottest.",
            exporter_query(told("whichrank.optic.temperature", _LEVEL), told("whichrank.switch.temperature", _LEVEL)),
            unit="celsius", empty=_NOBODY,
        ),
        lines(
            "Bit errors after correction",
            "By bits, of the worst links. Above 1e-12 packets are lost.",
            exporter_query(told("whichrank.fabric.bit_error_rate", _LEVEL)),
            unit="short", empty=_NOBODY, min=0,
        ),
    ]  # fmt: skip


def _servers() -> list[Panel]:
    server = "whichrank.storage.server"
    return [
        section("Storage servers"),
        lines(
            "Operations of servers",
            "A second, by target and operation.",
            exporter_query(told(f"{server}.operations", _RATE)),
            unit="ops", empty=_NOBODY, min=0,
        ),
        lines(
            "How long servers take",
            "For an operation, in the mean.",
            exporter_query(told(f"{server}.operation_time", _RATE), per=told(f"{server}.operations", _RATE)),
            unit="s", empty=_NOBODY, min=0,
        ),
        lines(
            "Operations by job",
            "Of those jobs, in the server's words, that ask for most.",
            exporter_query(told(f"{server}.job.operations", _RATE)),
            unit="ops", empty="no server counts by job", min=0,
        ),
        lines(
            "Bytes by job",
            "Read and written, of those jobs that move most.",
            exporter_query(told(f"{server}.job.io", _RATE)),
            unit="Bps", empty="no server counts by job", min=0,
        ),
        lines(
            "Bytes of servers",
            "Read and written, a second.",
            exporter_query(told(f"{server}.io", _RATE)),
            unit="Bps", empty=_NOBODY, min=0,
        ),
        lines(
            "Requests that fail or wait",
            "Failed and refused ones a second, and how many wait now.",
            exporter_query(told(f"{server}.errors", _RATE), told(f"{server}.waiting", _LEVEL)),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Space that is left",
            "Of the targets with least of it.",
            exporter_query(told(f"{server}.space", _LEVEL), per=told(f"{server}.space.limit", _LEVEL)),
            unit="percentunit", empty=_NOBODY, min=0, max=1,
        ),
        lines(
            "Clients",
            "That are connected to each target.",
            exporter_query(told(f"{server}.clients", _LEVEL)),
            unit="short", empty=_NOBODY, min=0,
        ),
    ]  # fmt: skip


def _around() -> list[Panel]:
    return [
        section("Power and services"),
        lines(
            "Load of power units",
            "1 low, 2 normal, 3 near overload, 4 overload.",
            exporter_query(told("whichrank.power.load_state", _LEVEL)),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "How long services take to answer",
            "A probe of each.",
            exporter_query(told("whichrank.service.duration", _LEVEL)),
            unit="s", empty=_NOBODY, min=0,
        ),
    ]  # fmt: skip


def _gpus() -> list[Panel]:
    return [
        section("GPUs, by dcgm-exporter"),
        lines(
            "Busy, and what of it",
            "Share of time in which a kernel ran, memory was copied, or a part of the GPU worked.",
            exporter_query(
                told("hw.gpu.utilization", _LEVEL), told("whichrank.gpu.memory.busy", _LEVEL),
                told("whichrank.gpu.active", _LEVEL),
            ),
            unit="percentunit", empty=_NOBODY, min=0,
        ),
        lines(
            "Memory of GPUs",
            "Share of it that is used.",
            exporter_query(told("hw.gpu.memory.usage", _LEVEL), per=told("hw.gpu.memory.limit", _LEVEL)),
            unit="percentunit", empty=_NOBODY, min=0,
        ),
        lines(
            "Temperature of GPUs",
            "And of their memory.",
            exporter_query(told("hw.temperature", _LEVEL)),
            unit="celsius", empty=_NOBODY,
        ),
        lines(
            "Power of GPUs",
            "What they take (told, and by their count of energy), and what they may.",
            exporter_query(
                told("hw.power", _LEVEL), told("hw.energy", _RATE), told("whichrank.gpu.power.limit", _LEVEL)
            ),
            unit="watt", empty=_NOBODY, min=0,
        ),
        lines(
            "Clocks of GPUs",
            "One that is slower than its neighbours slows the whole job.",
            exporter_query(told("whichrank.gpu.speed", _LEVEL)),
            unit="hertz", empty=_NOBODY, min=0,
        ),
        lines(
            "GPUs that are held back",
            "Share of time, by reason.",
            exporter_query(told("whichrank.gpu.throttled.time", _RATE)),
            unit="percentunit", empty=_NOBODY, min=0,
        ),
        lines(
            "PCIe of GPUs",
            "Bytes a second, by direction.",
            exporter_query(told("whichrank.gpu.pcie.throughput", _LEVEL)),
            unit="Bps", empty=_NOBODY, min=0,
        ),
        lines(
            "Generation of PCIe links",
            "Of what the device can. An idle one saves power and is slower.",
            exporter_query(
                told("whichrank.gpu.pcie.generation", _LEVEL), per=told("whichrank.gpu.pcie.generation.limit", _LEVEL)
            ),
            unit="percentunit", empty=_NOBODY, min=0,
        ),
        lines(
            "Errors of NVLinks",
            "By kind, a second.",
            exporter_query(told("whichrank.gpu.nvlink.errors", _RATE)),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Errors of GPUs' memory",
            "That could be corrected and that could not, a second.",
            exporter_query(told("hw.errors", _RATE, "dcgm")),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Repairs of GPUs' memory",
            "Pages retired and rows remapped, and what waits for a reset.",
            exporter_query(
                told("whichrank.gpu.retired_pages", _LEVEL), told("whichrank.gpu.retired_pages.pending", _LEVEL),
                told("whichrank.gpu.remapped_rows", _LEVEL), told("whichrank.gpu.remapped_rows.pending", _LEVEL),
            ),
            unit="short", empty=_NOBODY, min=0,
        ),
    ]  # fmt: skip


def _hosts() -> list[Panel]:
    nfs = "whichrank.nfs"
    return [
        section("Hosts, by node_exporter"),
        lines(
            "Traffic of hosts",
            "Bytes a second, by port and direction.",
            exporter_query(told("hw.network.io", _RATE, "node_exporter")),
            unit="Bps", empty=_NOBODY, min=0,
        ),
        lines(
            "Errors of hosts' ports",
            "By kind, a second.",
            exporter_query(told("hw.errors", _RATE, "node_exporter", hw_type="network")),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Congestion at hosts",
            "Notifications, marks, waits and drops, a second.",
            exporter_query(told("whichrank.fabric.congestion", _RATE, "node_exporter")),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Pressure on hosts",
            "Share of time in which somebody waited for processors, memory or disks.",
            exporter_query(told("whichrank.pressure.time", _RATE)),
            unit="percentunit", empty=_NOBODY, min=0,
        ),
        lines(
            "Load of hosts",
            "Threads that want to run, and those that are blocked.",
            exporter_query(told("system.cpu.load_average.1m", _LEVEL), told("system.process.count", _LEVEL)),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Paging of hosts",
            "Pages a second that are read back or swapped. Where it is much, memory is short.",
            exporter_query(told("system.paging.faults", _RATE), told("system.paging.operations", _RATE)),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Shared memory of hosts",
            "Bytes, of /dev/shm and others.",
            exporter_query(told("system.memory.linux.shared", _LEVEL)),
            unit="bytes", empty=_NOBODY, min=0,
        ),
        lines(
            "Corrected errors of hosts' memory",
            "A second, by controller.",
            exporter_query(told("whichrank.memory.errors", _RATE)),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Disks: bytes",
            "Read and written, a second.",
            exporter_query(told("system.disk.io", _RATE)),
            unit="Bps", empty=_NOBODY, min=0,
        ),
        lines(
            "Disks: how long a request takes",
            "In the mean.",
            exporter_query(told("system.disk.operation_time", _RATE), per=told("system.disk.operations", _RATE)),
            unit="s", empty=_NOBODY, min=0,
        ),
        lines(
            "Disks: busy",
            "Share of time in which a request was under way.",
            exporter_query(told("system.disk.io_time", _RATE)),
            unit="percentunit", empty=_NOBODY, min=0,
        ),
        lines(
            "NFS: how long a request takes",
            "In the mean, where it waits: in the queue, for the server, as a whole.",
            exporter_query(
                told(f"{nfs}.queue_time", _RATE), told(f"{nfs}.round_trip_time", _RATE),
                told(f"{nfs}.execution_time", _RATE), per=told(f"{nfs}.operations", _RATE),
            ),
            unit="s", empty=_NOBODY, min=0,
        ),
        lines(
            "NFS: bytes",
            "Read and written, a second.",
            exporter_query(told(f"{nfs}.io", _RATE)),
            unit="Bps", empty=_NOBODY, min=0,
        ),
        lines(
            "NFS: waiting to be sent",
            "Growth of the backlog, a second.",
            exporter_query(told(f"{nfs}.backlog", _RATE)),
            unit="short", empty=_NOBODY, min=0,
        ),
        lines(
            "Temperature of hosts",
            "Of their sensors, the hottest.",
            exporter_query(told("whichrank.thermal_zone.temperature", _LEVEL)),
            unit="celsius", empty=_NOBODY,
        ),
        lines(
            "Clocks of hosts",
            "How far from their time servers.",
            exporter_query(told("whichrank.clock.offset", _LEVEL)),
            unit="s", empty=_NOBODY,
        ),
    ]  # fmt: skip
