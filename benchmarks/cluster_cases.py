"""Faults of servers, switches, ports, power and services, as exporters tell them, and the jobs that they hit.

A case says what an exporter's page looks like while its fault lasts, which jobs are hit, and which cause is right. Each
is told in five variants (``Variant``): the fault itself, and four controls in which the same page is no cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from tests.processors.cluster.shared.fleet import Fleet, Job
from whichrank.telemetry.vocabulary import Kind

#: Counters have grown for so long before the story begins.
OLD_S = 100_000.0
SCRAPED_EVERY_S = 15.0


class Variant(Enum):
    FAULT = "fault"
    #: The same of another switch, server, rack or service, while a job has trouble of its own.
    ELSEWHERE = "elsewhere"
    #: It was over a quarter of an hour before a job has trouble of its own.
    EARLIER = "earlier"
    #: It is no more than what every day brings.
    TOLERATED = "tolerated"
    #: It has lasted for most of an hour, and everybody was well with it.
    LASTING = "lasting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """When a fault lasts (seconds of the story), and whether it is only a mild one."""

    begin: float
    end: float = inf
    is_mild: bool = False

    def level(self, at: float, usual: float, bad: float, mild: float | None = None) -> float:
        """What a gauge shows."""
        if not self.begin <= at < self.end:
            return usual
        return bad if not self.is_mild else usual if mild is None else mild

    def count(self, at: float, usual: float, bad: float, mild: float | None = None) -> float:
        """What a counter shows, that grows by so much a second."""
        beyond = (usual if mild is None else mild) if self.is_mild else bad
        lasted = max(0.0, min(at, self.end) - self.begin)
        return round(usual * (at + OLD_S - lasted) + beyond * lasted, 3)


#: The lines of a page at a time, for a place (a target, a port ...) of the exporter that is scraped.
Page = Callable[[Spell, float, str], Iterable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """scraped, elsewhere: instance of the scrape, and place on its page. Of several places all are told.

    hit: jobs that the fault hits. alike: the trouble of one job that looks like that. other: one that does not. right:
    rule and entity. culprit, counted_by: of a noisy neighbour. labels: of nodes; None: there is none.
    """

    name: str
    page: Page
    scraped: tuple[tuple[str, str], ...]
    elsewhere: tuple[tuple[str, str], ...]
    hit: Callable[[Fleet], None]
    alike: Callable[[Fleet], None]
    right: tuple[str, str]
    other: Callable[[Fleet], None] | None = None
    culprit: str = ""
    counted_by: str = ""
    labels: Mapping[str, str | None] = field(default_factory=dict)

    def jobs_of(self, variant: Variant) -> Callable[[Fleet], None]:
        """Who has trouble. Where nothing else is there to be elsewhere, it is trouble of another kind."""
        if variant is Variant.FAULT:
            return self.hit
        is_other = variant is Variant.ELSEWHERE and self.elsewhere == self.scraped
        return self.other if self.other is not None and (is_other or variant is Variant.LASTING) else self.alike


# --- jobs: over two leaves each, so that suspects under one of them say something ------------------------------------
def _jobs(fleet: Fleet) -> dict[str, Job]:
    nodes = {
        "a": [*fleet.under(0, 0, 1), *fleet.under(1, 0, 1)],
        "b": [*fleet.under(1, 2, 3), *fleet.under(2, 0, 1)],
        "c": [*fleet.under(0, 2, 3), *fleet.under(2, 2, 3)],
        "d": [*fleet.under(4, 0, 1), *fleet.under(5, 0, 1)],
        "4711": [*fleet.under(0, 4, 5), *fleet.under(2, 4, 5)],
    }
    return {name: fleet.job(name, where, owner=f"10{i:02}") for i, (name, where) in enumerate(nodes.items())}


def _waits_for_data(*names: str, kind: Kind = Kind.SLOW_TOGETHER, phase: str = "data") -> Callable[[Fleet], None]:
    def hit(fleet: Fleet) -> None:
        jobs = _jobs(fleet)
        for i, name in enumerate(names):
            node = None if kind is Kind.SLOW_TOGETHER else jobs[name].nodes[i]
            jobs[name].tell(kind, 40.0 + i, onset=12.0 + i, phase=phase, node=node)

    return hit


def _raises(error: str, *names: str, phase: str = "checkpoint") -> Callable[[Fleet], None]:
    def hit(fleet: Fleet) -> None:
        jobs = _jobs(fleet)
        for i, name in enumerate(names):
            jobs[name].tell(Kind.RANK_RAISED, 20.0 + i, node=jobs[name].nodes[i], phase=phase, error=error)

    return hit


def _exchanges(
    *suspects: tuple[str, str], kind: Kind = Kind.RANK_SLOW, phase: str = "exchange"
) -> Callable[[Fleet], None]:
    def hit(fleet: Fleet) -> None:
        jobs = _jobs(fleet)
        for i, (name, node) in enumerate(suspects):
            jobs[name].tell(kind, 40.0 + i, onset=12.0 + i, node=node, phase=phase)

    return hit


def _two_own_troubles(fleet: Fleet) -> None:
    """One rank computes slowly, one waits for its own loader's code, in jobs that share no place of the fault."""
    jobs = _jobs(fleet)
    jobs["d"].tell(Kind.SLOW_TOGETHER, 45.0, onset=12.0, phase="own")
    jobs["b"].tell(Kind.RANK_SLOW, 50.0, onset=13.0, node="n2-0", phase="forward")


_DATA = _waits_for_data("a", "b")
_ONE_IS_SLOW = _waits_for_data("a")
_NO_SPACE = "OSError: [Errno 28] No space left on device: '/lustre/ckpt'"
_LEAF1 = _exchanges(("a", "n1-0"), ("b", "n1-2"))


# --- pages ------------------------------------------------------------------------------------------------------------
def _lustre(spell: Spell, at: float, target: str, *, slow: float = 1.0, ops: float = 1.0) -> Iterator[str]:
    """A healthy server of one target; slow, ops: how many times longer, and more, while the spell lasts."""
    for operation, rate, micros in (("open", 400.0, 300.0), ("getattr", 900.0, 120.0), ("close", 400.0, 90.0)):
        count = spell.count(at, rate, rate * ops, rate * 1.5)
        spent = spell.count(at, rate * micros, rate * ops * micros * slow, rate * micros * 1.4)
        yield f'lustre_stats_total{{component="mdt",operation="{operation}",target="{target}"}} {count}'
        yield f'lustre_stats_time_total{{component="mdt",operation="{operation}",target="{target}"}} {spent}'


def _lustre_slow(spell: Spell, at: float, target: str) -> Iterator[str]:
    yield from _lustre(spell, at, target, slow=150.0)


def _gauge(name: str, labels: str, usual: float, bad: float, mild: float | None = None) -> Page:
    def page(spell: Spell, at: float, place: str) -> Iterator[str]:
        yield f"{name}{{{labels.replace('PLACE', place)}}} {spell.level(at, usual, bad, mild)}"

    return page


def _counter(name: str, labels: str, usual: float, bad: float, mild: float | None = None) -> Page:
    def page(spell: Spell, at: float, place: str) -> Iterator[str]:
        yield f"{name}{{{labels.replace('PLACE', place)}}} {spell.count(at, usual, bad, mild)}"

    return page


_TARGET = 'component="mdt",target="PLACE"'


def _space(name: str, whole: str, size: float) -> Page:
    def page(spell: Spell, at: float, place: str) -> Iterator[str]:
        labels = f'component="ost",target="{place}"'
        yield f"{whole}{{{labels}}} {size}"
        yield f"{name}{{{labels}}} {spell.level(at, size * 0.2, size * 0.0005, size * 0.1)}"

    return page


def _jobstats(storming: str, operation: str = "getattr", *, slow: float = 1.0) -> Page:
    """What a metadata target counts of jobs; one of them storms while the spell lasts, and all takes longer then."""

    def page(spell: Spell, at: float, target: str) -> Iterator[str]:
        yield from _lustre(spell, at, target, slow=slow)
        for job in ("a", "b", "c", "node_exporter:989:login1", storming):
            for name, rate in (("open", 20.0), ("getattr", 40.0), ("unlink", 0.0)):
                is_storm = job == storming and name == operation
                count = spell.count(at, rate, 24_000.0 if is_storm else rate, rate * (2.0 if is_storm else 1.0))
                labels = f'component="mdt",jobid="{job}",operation="{name}",target="{target}"'
                yield f"lustre_job_stats_total{{{labels}}} {count}"

    return page


def _nfsd(spell: Spell, at: float, _: str, *, storm: float = 1.0, threads: float = 64.0) -> Iterator[str]:
    for method, rate in (("GetAttr", 600.0), ("Lookup", 300.0), ("Read", 800.0)):
        count = spell.count(at, rate, rate * storm, rate * 1.6)
        yield f'node_nfsd_requests_total{{method="{method}",proto="3"}} {count}'
    yield f"node_nfsd_server_threads {spell.level(at, 64.0, threads)}"
    yield f'node_nfsd_rpc_errors_total{{error="auth"}} {spell.count(at, 0.01, 0.01)}'


def _mountstats(spell: Spell, at: float, _: str) -> Iterator[str]:
    """A client that storms the server, which does not count by job."""
    for operation, rate, storm in (("GETATTR", 30.0, 9000.0), ("LOOKUP", 10.0, 3000.0), ("READ", 20.0, 20.0)):
        labels = f'export="nas1:/data",mountaddr="10.0.0.9",operation="{operation}",protocol="tcp"'
        count = spell.count(at, rate, storm, rate * 2.0)
        yield f"node_mountstats_nfs_operations_requests_total{{{labels}}} {count}"


def _s3(spell: Spell, at: float, _: str) -> Iterator[str]:
    for api, rate in (("getobject", 300.0), ("putobject", 60.0)):
        yield f'minio_s3_requests_total{{api="{api}",server="127.0.0.1:9000"}} {spell.count(at, rate, rate)}'
        failed = spell.count(at, rate * 0.0005, rate * 0.4, rate * 0.01)
        yield f'minio_s3_requests_5xx_errors_total{{api="{api}",server="127.0.0.1:9000"}} {failed}'


def _latency(prefix: str, usual_s: float, slow: float) -> Page:
    def page(spell: Spell, at: float, daemon: str) -> Iterator[str]:
        rate = 500.0
        spent = spell.count(at, rate * usual_s, rate * usual_s * slow, rate * usual_s * 1.5)
        yield f'{prefix}_count{{ceph_daemon="{daemon}"}} {spell.count(at, rate, rate)}'
        yield f'{prefix}_sum{{ceph_daemon="{daemon}"}} {spent}'

    return page


_GNMI = 'interface_name="PLACE",subscription_name="ports"'
_SNMP = 'ifDescr="PLACE",ifIndex="7",ifName="PLACE"'


def _ufm(name: str, usual: float, bad: float, mild: float) -> Page:
    """place: switch and port."""

    def page(spell: Spell, at: float, place: str) -> Iterator[str]:
        switch, port = place.split("/")
        labels = f'node_desc="MF0;{switch}:MQM9700/U1",node_guid="0xb83f{switch}",port_num="{port}"'
        yield f"{name}{{{labels}}} {spell.count(at, usual, bad, mild)}"
        yield f"PortXmitDataExtended{{{labels}}} {spell.count(at, 1e9, 1e9)}"

    return page


def _port_down(spell: Spell, at: float, port: str) -> Iterator[str]:
    labels = _SNMP.replace("PLACE", port)
    yield f"ifOperStatus{{{labels}}} {spell.level(at, 1, 2)}"
    # A mild one is a port that somebody has switched off.
    is_off = spell.is_mild and spell.begin <= at < spell.end
    yield f"ifAdminStatus{{{labels}}} {2 if is_off else 1}"
    yield f'ifOperStatus{{ifDescr="Eth9/9",ifIndex="99",ifName="Eth9/9"}} {2 if is_off else 1}'
    yield f'ifAdminStatus{{ifDescr="Eth9/9",ifIndex="99",ifName="Eth9/9"}} {2 if is_off else 1}'


def _dcgm(bits: int) -> Page:
    """place: number of a GPU."""

    def page(spell: Spell, at: float, gpu: str) -> Iterator[str]:
        labels = f'UUID="GPU-{gpu}",gpu="0",modelName="NVIDIA H100 80GB HBM3"'
        yield f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{labels}}} {int(spell.level(at, 0, bits, 4))}"
        yield f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} {spell.level(at, 61, 88, 70)}"

    return page


def _rack_page(spell: Spell, at: float, place: str) -> Iterable[str]:
    """Of the rack's PDU, and of a GPU in it."""
    if place == "pdu":
        return _gauge("rPDU2PhaseStatusLoadState", 'rPDU2PhaseStatusIndex="1"', 2, 4, 3)(spell, at, place)
    return _dcgm(0x80)(spell, at, place)


def _on_nodes(*nodes: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{node}:9400", f"{node}-0") for node in nodes)


def _throttled(*names_and_nodes: tuple[str, str]) -> Callable[[Fleet], None]:
    def hit(fleet: Fleet) -> None:
        jobs = _jobs(fleet)
        for i, (name, node) in enumerate(names_and_nodes):
            jobs[name].tell(Kind.RANK_SLOW, 60.0 + i, onset=20.0 + i, node=node, phase="forward")

    return hit


def _starting(*names: str, error: str) -> Callable[[Fleet], None]:
    def hit(fleet: Fleet) -> None:
        _jobs(fleet)
        for i, name in enumerate(names):
            job = fleet.job(name, fleet.under(3, 2 * i, 2 * i + 1), at=5.0 + i)
            job.tell(Kind.RANK_RAISED, 30.0 + i, node=job.nodes[0], phase="init", step=0, error=error)

    return hit


def _starts_badly(fleet: Fleet) -> None:
    _jobs(fleet)
    job = fleet.job("young", fleet.under(3, 0, 1), at=5.0)
    job.tell(Kind.RANK_RAISED, 30.0, node=job.nodes[0], phase="init", step=0, error="KeyError: 'learning_rate'")


def _with_ports(*told: tuple[str, str, str]) -> Callable[[Fleet], None]:
    """Each (job, node, port): the agent says that the port is down, and the rank does not come."""

    def hit(fleet: Fleet) -> None:
        jobs = _jobs(fleet)
        for i, (name, node, port) in enumerate(told):
            fleet.condition(
                "port_down", node, 11.0, device_kind="nic", device=f"{port}/1", job=jobs[name], scope="link",
                explains=["collective_stalled", "rank_not_entered"], at_once=True,
            )  # fmt: skip
            jobs[name].tell(Kind.RANK_NOT_ENTERED, 40.0 + i, onset=12.0 + i, node=node, phase="exchange")

    return hit


def _with_nvlinks(*told: tuple[str, str]) -> Callable[[Fleet], None]:
    def hit(fleet: Fleet) -> None:
        jobs = _jobs(fleet)
        for i, (name, node) in enumerate(told):
            fleet.condition(
                "nvlink_down", node, 11.0, device=f"GPU-{node}/3", job=jobs[name], scope="link",
                explains=["collective_stalled", "rank_not_entered"],
            )  # fmt: skip
            jobs[name].tell(
                Kind.RANK_NOT_ENTERED, 40.0 + i, onset=12.0 + i, node=node, phase="exchange", gpu=f"GPU-{node}"
            )

    return hit


def _quiet(spell: Spell, at: float, _: str) -> Iterator[str]:
    """What is told of the fault comes of agents; the page beside it is of a switch that is well."""
    yield f"ifOperStatus{{{_SNMP.replace('PLACE', 'Eth1/1')}}} {spell.level(at, 1, 1)}"


def _storage(name: str, page: Page, hit: Callable[[Fleet], None] = _DATA, **more: object) -> Case:
    """On the servers of lustre1; elsewhere on those of lustre2, which nobody here uses."""
    about: dict[str, object] = {
        "scraped": (("mds1:9169", "lustre1-MDT0000"),),
        "elsewhere": (("mds2:9169", "lustre2-MDT0000"),),
        "right": ("storage_slow", "lustre1"),
        "alike": _ONE_IS_SLOW,
        **more,
    }
    return Case(name=name, page=page, hit=hit, **about)  # type: ignore[arg-type]


def _shared(name: str, page: Page, instance: str, place: str, hit: Callable[[Fleet], None], **more: object) -> Case:
    """A store without a label: it is everybody's, so there is no elsewhere but somebody else's trouble."""
    about: dict[str, object] = {
        "scraped": ((instance, place),),
        "elsewhere": ((instance, place),),
        "right": ("storage_slow", "the shared storage"),
        "alike": _ONE_IS_SLOW,
        "other": _two_own_troubles,
        "labels": {"storage": None},
        **more,
    }
    return Case(name=name, page=page, hit=hit, **about)  # type: ignore[arg-type]


def _switch(name: str, page: Page, place: str, hit: Callable[[Fleet], None] = _LEAF1, **more: object) -> Case:
    about: dict[str, object] = {
        "scraped": (("leaf1:57400", place),),
        "elsewhere": (("leaf5:57400", place),),
        "right": ("leaf_fault", "leaf1"),
        "alike": _exchanges(("a", "n1-0")),
        **more,
    }
    return Case(name=name, page=page, hit=hit, **about)  # type: ignore[arg-type]


_ALONE = _exchanges(("a", "n1-0"), kind=Kind.RANK_NOT_ENTERED)
_ONE_WAITS = _waits_for_data("a", kind=Kind.RANK_NOT_ENTERED)
_SPINE = _exchanges(("a", "n0-1"), ("b", "n1-2"), ("c", "n0-2"))
_ALL_STALL = _exchanges(("a", "n1-0"), ("b", "n2-0"), ("c", "n0-2"), ("d", "n4-0"), kind=Kind.COLLECTIVE_STALLED)
_TWO_ARE_SLOW = _throttled(("a", "n0-0"), ("d", "n4-0"))

CASES: tuple[Case, ...] = (
    # servers
    _storage("Lustre: metadata takes 150 times as long", _lustre_slow),
    _storage("Lustre: metadata takes 150 times as long, one job alone", _lustre_slow, _ONE_WAITS),
    _storage("Lustre: a target recovers", _gauge("recovery_status", _TARGET, 0, 4, 1), _ONE_WAITS),
    _storage("Lustre: a server is not healthy", _gauge("lustre_health_healthy", _TARGET, 1, 0, 1)),
    _storage(
        "Lustre: an object target is not reached", _gauge("lustre_osp_active", _TARGET, 1, 0, 1),
        _waits_for_data("a", "c", kind=Kind.RANK_NOT_ENTERED, phase="checkpoint"),
    ),
    _storage(
        "Lustre: a target is full", _space("lustre_available_kilobytes", "lustre_capacity_kilobytes", 1e12),
        _raises(_NO_SPACE, "a", "c"), right=("storage_full", "lustre1"),
    ),
    _storage(
        "Lustre: no inodes are left", _space("lustre_inodes_free", "lustre_inodes_maximum", 1e9),
        _raises(_NO_SPACE, "a", "b"), right=("storage_full", "lustre1"),
    ),
    _storage(
        "Lustre: jobstats by Slurm's id", _jobstats("4711"), right=("noisy_neighbour", "lustre1"), culprit="4711",
        counted_by="server",
    ),
    _storage(
        "Lustre: jobstats by process and user", _jobstats("python3.1004"), right=("noisy_neighbour", "lustre1"),
        culprit="4711", counted_by="server",
    ),
    _storage(
        "Lustre: jobstats by process, user and id", _jobstats("dd.1004:4711", "open"),
        right=("noisy_neighbour", "lustre1"), culprit="4711", counted_by="server",
    ),
    _storage(
        "Lustre: jobstats, and the storm makes the server slow", _jobstats("4711", slow=150.0),
        right=("noisy_neighbour", "lustre1"), culprit="4711", counted_by="server",
    ),
    _storage(
        "Lustre: jobstats, the storm makes the server slow, and one other job alone waits",
        _jobstats("4711", slow=150.0), _ONE_WAITS, right=("noisy_neighbour", "lustre1"), culprit="4711",
        counted_by="server",
    ),
    _storage(
        "Lustre: jobstats of nobody known here", _jobstats("rsync.0"), right=("noisy_neighbour", "lustre1"),
        culprit="rsync.0", counted_by="server",
    ),
    _shared(
        "NFS server: ten times its requests", lambda s, t, p: _nfsd(s, t, p, storm=10.0), "nas1:9100", "nfsd", _DATA
    ),
    _shared(
        "NFS server: no thread serves", lambda s, t, p: _nfsd(s, t, p, threads=0.0), "nas1:9100", "nfsd", _ONE_WAITS
    ),
    Case(
        name="NFS: a client storms, the server does not count by job",
        page=_mountstats,
        scraped=tuple((f"n{leaf}-{i}:9100", "") for leaf, i in ((0, 4), (0, 5), (2, 4), (2, 5))),
        elsewhere=(("n6-0:9100", ""), ("n6-1:9100", "")),
        hit=_waits_for_data("a", "b"),
        alike=_ONE_IS_SLOW,
        right=("noisy_neighbour", "nas1:/data"),
        culprit="4711",
        counted_by="clients",
        labels={"storage": None},
    ),
    _shared(
        "S3 (MinIO): two of five requests fail", _s3, "minio1:9000", "",
        _raises("ReadTimeoutError: 503 timed out", "a", "b"),
    ),
    _shared(
        "S3 (MinIO): nodes are away", _gauge("minio_cluster_nodes_offline_total", 'server="x"', 0, 3, 0), "minio1:9000",
        "", _ONE_WAITS,
    ),
    _shared(
        "Ceph: a metadata server is slow", _latency("ceph_mds_reply_latency", 0.004, 40.0), "ceph1:9283", "mds.a", _DATA
    ),
    _shared(
        "Ceph: a disk daemon is down", _gauge("ceph_osd_up", 'ceph_daemon="PLACE"', 1, 0, 1), "ceph1:9283", "osd.3",
        _DATA,
    ),
    _shared("Ceph: an error of health", _gauge("ceph_health_status", "", 0, 2, 1), "ceph1:9283", "", _DATA),
    _shared(
        "Storage Scale: a component has failed",
        _gauge("gpfs_health_status", 'component="GPFS",entityname="PLACE",entitytype="NODE",status="FAILED"', 0, 1, 0),
        "nsd1:9303", "nsd1", _DATA,
    ),
    # switches and their ports
    _switch(
        "gNMI: frames arrive damaged",
        _counter("interfaces_interface_state_counters_in_fcs_errors", _GNMI, 0.001, 40.0, 0.2), "Ethernet1/7",
    ),
    _switch(
        "gNMI: damaged frames, one job alone",
        _counter("interfaces_interface_state_counters_in_fcs_errors", _GNMI, 0.001, 40.0, 0.2), "Ethernet1/7", _ALONE,
    ),
    _switch("SNMP: a port is down", _port_down, "Eth1/7", _ALONE),
    _switch(
        "gNMI: a link comes and goes",
        _counter("interfaces_interface_state_counters_carrier_transitions", _GNMI, 0.0, 0.4, 0.05), "Ethernet1/7",
    ),
    _switch(
        "gNMI: an optic receives less light",
        _gauge(
            "components_component_transceiver_physical_channels_channel_state_input_power_instant",
            'component_name="PLACE",index="0"', -2.1, -9.4, -3.0,
        ),
        "Ethernet1/7",
    ),
    _switch(
        "SNMP: a power supply has failed",
        _gauge("ciscoEnvMonSupplyState", 'ciscoEnvMonSupplyStatusDescr="PLACE"', 1, 6, 1), "PSU 2",
    ),
    _switch(
        "UFM: symbol errors", _ufm("SymbolErrorCounterExtended", 0.0001, 90.0, 1.0), "leaf1/31",
        scraped=(("ufm:9001", "leaf1/31"),), elsewhere=(("ufm:9001", "leaf5/31"),),
    ),
    _switch(
        "UFM: links are lost", _ufm("LinkDownedCounterExtended", 0.0, 0.3, 0.04), "leaf1/31", _ALONE,
        scraped=(("ufm:9001", "leaf1/31"),), elsewhere=(("ufm:9001", "leaf5/31"),),
    ),
    _switch(
        "infiniband_exporter: receive errors",
        _counter(
            "infiniband_switch_port_receive_errors_total", 'guid="0xb8",port="31",switch="PLACE"', 0.001, 50.0, 1.0
        ),
        "leaf1", scraped=(("ibx:9315", "leaf1"),), elsewhere=(("ibx:9315", "leaf5"),),
    ),
    _switch(
        "gNMI: a spine damages frames",
        _counter("interfaces_interface_state_counters_in_fcs_errors", _GNMI, 0.001, 40.0, 0.2), "Ethernet1/7", _SPINE,
        scraped=(("spine0:57400", "Ethernet1/7"),), elsewhere=(("spine3:57400", "Ethernet1/7"),),
        right=("spine_fault", "spine0"),
    ),
    _switch(
        "UFM: all switches wait for credits", _ufm("PortXmitWaitExtended", 1e4, 9e7, 3e4), "", _ALL_STALL,
        scraped=tuple(("ufm:9001", f"leaf{leaf}/31") for leaf in range(6)), elsewhere=(("ufm:9001", "leaf7/31"),),
        right=("fabric_stall", "the fabric"),
    ),
    Case(
        name="ports of one rail are down", page=_quiet, scraped=(("rail3-sw:161", ""),),
        elsewhere=(("rail3-sw:161", ""),), hit=_with_ports(("a", "n0-0", "mlx5_3"), ("b", "n2-1", "mlx5_3")),
        alike=_with_ports(("a", "n0-0", "mlx5_3"), ("b", "n2-1", "mlx5_5")), right=("rail_fault", "rail3"),
    ),
    Case(
        name="NVLinks of one domain are down", page=_quiet, scraped=(("rail3-sw:161", ""),),
        elsewhere=(("rail3-sw:161", ""),), hit=_with_nvlinks(("a", "n1-0"), ("b", "n1-2")),
        alike=_with_nvlinks(("a", "n1-0"), ("b", "n2-1")), right=("nvlink_domain_fault", "nvl1"),
    ),
    # power and cooling
    Case(
        name="DCGM: GPUs of one rack are too hot", page=_dcgm(0x40),
        scraped=_on_nodes("n0-0", "n0-1", "n0-2", "n0-3"), elsewhere=_on_nodes("n6-0", "n6-1", "n6-2", "n6-3"),
        hit=_throttled(("a", "n0-0"), ("c", "n0-2")), alike=_TWO_ARE_SLOW, right=("power_or_cooling", "rack0a"),
        labels={"pdu": None, "cooling": None},
    ),
    Case(
        name="DCGM: a brake on one power unit's nodes", page=_dcgm(0x80),
        scraped=_on_nodes("n0-0", "n0-1", "n0-2", "n0-3"), elsewhere=_on_nodes("n6-0", "n6-1", "n6-2", "n6-3"),
        hit=_throttled(("a", "n0-0"), ("c", "n0-2")), alike=_TWO_ARE_SLOW,
        right=("power_or_cooling_of_pdu", "pdu0a"), labels={"rack": None, "cooling": None},
    ),
    Case(
        name="a rack's PDU is overloaded, its GPUs are held back",
        page=_rack_page,
        scraped=(*_on_nodes("n0-0", "n0-1", "n0-2", "n0-3"), ("pdu0a:161", "pdu")),
        elsewhere=(*_on_nodes("n6-0", "n6-1", "n6-2", "n6-3"), ("pdu6a:161", "pdu")),
        hit=_throttled(("a", "n0-0"), ("c", "n0-2")), alike=_TWO_ARE_SLOW,
        right=("power_or_cooling_of_pdu", "pdu0a"), labels={"cooling": None},
    ),
    Case(
        name="DCGM: GPUs of one cooling loop are too hot", page=_dcgm(0x20),
        scraped=_on_nodes("n0-0", "n0-1", "n0-4", "n0-5", "n1-0", "n1-1"),
        elsewhere=_on_nodes("n6-0", "n6-1", "n6-4", "n7-0"),
        hit=_throttled(("a", "n0-0"), ("4711", "n0-4")), alike=_TWO_ARE_SLOW,
        right=("power_or_cooling_of_loop", "loop0"),
    ),
    # services
    Case(
        name="blackbox: the registry does not answer", page=_gauge("probe_success", 'service="registry"', 1, 0, 1),
        scraped=(("registry:9115", ""),), elsewhere=(("registry:9115", ""),),
        hit=_starting("young", error="ConnectionError: registry unavailable"), other=_starts_badly,
        alike=_starting("young", error="ConnectionError: registry unavailable"),
        right=("service_outage", "the control services"),
    ),
    Case(
        name="blackbox: the name service takes seconds",
        page=_gauge("probe_duration_seconds", 'service="dns"', 0.02, 6.0, 0.08),
        scraped=(("dns:9115", ""),), elsewhere=(("dns:9115", ""),),
        hit=_starting("young", "new", error="gaierror: Temporary failure in name resolution"), other=_starts_badly,
        alike=_starting("young", error="gaierror: Temporary failure in name resolution"),
        right=("service_outage", "the control services"),
    ),
)  # fmt: skip
