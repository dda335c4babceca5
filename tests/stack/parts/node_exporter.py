"""A real node_exporter that reads a node's /proc and /sys from files, and a real Collector that scrapes it.

``python -m tests.stack.parts.node_exporter`` writes anew what the tests of the crosswalk read: one scrape as the
Collector's Prometheus receiver passes it on, as JSON (needs root, for a host name of its own).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.agents.collectors.port_tree import write
from tests.ports import free_ports
from tests.stack.parts.go_programs import NODE_EXPORTER, built, built_collector
from tests.stack.parts.placing import REPOSITORY
from tests.stack.parts.service import Service, answers_http, eventually

RECORDED = REPOSITORY / "tests/diagnosis/crosswalk/payloads/node_exporter_scraped.json"
RECORDED_HOST = "gpu-node-02"
PORT = "class/infiniband/mlx5_0/ports/1"
EDAC = "devices/system/edac/mc/mc0"
#: What the kernel of a healthy node says, as far as these collectors read it.
PROC: Mapping[str, str] = {
    "meminfo": "MemTotal:  1056784368 kB\nMemFree: 9000000 kB\nMemAvailable: 900000000 kB\nShmem: 4096 kB",
    "vmstat": "pgmajfault 27483\npswpin 0\npswpout 0\noom_kill 0",
    "loadavg": "3.10 2.20 1.10 2/900 4711",
    "sys/fs/file-nr": "1559\t0\t2466170",
    "sys/net/netfilter/nf_conntrack_count": "812",
    "sys/net/netfilter/nf_conntrack_max": "262144",
    "net/stat/nf_conntrack": "entries searched\n0000032c 00000000",
    "pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=480905764",
    "pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=20881064\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=9251462",
    "pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3",
    "stat": "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 9\nctxt 8\nbtime 1700000000\nprocesses 7\n"
    "procs_running 2\nprocs_blocked 1\nsoftirq 1 1 1 1 1 1 1 1 1 1 1",
    "net/rpc/nfs": "net 0 0 0 0\nrpc 4329785 17 4329800\n"
    "proc3 22 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21",
    "1/mountinfo": "36 35 98:0 / / rw,noatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
    "37 36 0:45 / /ckpt rw,relatime shared:2 - nfs4 nas1:/ckpt rw",
}
SYS: Mapping[str, str] = {
    f"{PORT}/state": "4: ACTIVE",
    f"{PORT}/phys_state": "5: LinkUp",
    f"{PORT}/rate": "400 Gb/sec (4X NDR)",
    f"{PORT}/link_layer": "InfiniBand",
    f"{PORT}/counters/link_downed": "3",
    f"{PORT}/counters/symbol_error": "12",
    f"{PORT}/counters/port_xmit_wait": "9",
    f"{PORT}/counters/port_rcv_data": "100",
    f"{PORT}/hw_counters/out_of_sequence": "2",
    "class/infiniband/mlx5_0/board_id": "MT_0000000838",
    "class/infiniband/mlx5_0/fw_ver": "28.43.2566",
    "class/infiniband/mlx5_0/hca_type": "MT4129",
    **{f"{EDAC}/{name}_count": "0" for name in ("ce", "ce_noinfo", "ue", "ue_noinfo")},
    "class/hwmon/hwmon0/name": "coretemp",
    "class/hwmon/hwmon0/temp1_input": "54000",
    "class/hwmon/hwmon0/temp1_crit": "100000",
    "class/hwmon/hwmon0/temp1_crit_alarm": "0",
    **{f"class/net/{name}/operstate": state for name, state in (("eth0", "up"), ("docker0", "down"))},
    "class/net/eth0/speed": "25000",
    "class/net/eth0/carrier_changes": "2",
    "class/thermal/thermal_zone0/type": "x86_pkg_temp",
    "class/thermal/thermal_zone0/policy": "step_wise",
    "class/thermal/thermal_zone0/temp": "52000",
}
COLLECTORS = (
    *("pressure", "meminfo", "vmstat", "filesystem", "nfs", "infiniband", "edac", "hwmon", "thermal_zone", "timex"),
    *("netclass", "loadavg", "filefd", "stat", "conntrack", "uname"),
)
COLLECTOR = """\
receivers:
  prometheus:
    config:
      scrape_configs:
        - job_name: node
          scrape_interval: 1s
          static_configs: [{{targets: [{targets}]}}]
exporters:
  file: {{path: {folder}/metrics.jsonl, flush_interval: 100ms}}
  kafka:
    brokers: ["{kafka}"]
    metrics: {{topic: {topic}, encoding: otlp_proto}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    metrics: {{receivers: [prometheus], exporters: [{exporter}]}}
"""


class NodeExporter:
    """``say`` changes what its node's kernel says. without: collectors that are off. host: a name of its own (root)."""

    def __init__(self, folder: Path, *, without: Sequence[str] = (), host: str = "") -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self._folder = folder
        write(folder / "proc", PROC)
        write(folder / "sys", SYS)
        (folder / "root/ckpt").mkdir(parents=True)
        command = [
            *(str(built(NODE_EXPORTER)), "--collector.disable-defaults", f"--web.listen-address={self.address}"),
            *(f"--path.procfs={folder}/proc", f"--path.sysfs={folder}/sys", f"--path.rootfs={folder}/root"),
            *(f"--collector.{name}" for name in COLLECTORS if name not in without),
        ]
        if host:
            command = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host, *command]
        self.service = Service(
            "node_exporter",
            command,
            log=folder / "node_exporter.log",
            ready=lambda: answers_http(f"http://{self.address}/metrics"),
        )

    def say(self, file: str, text: str) -> None:
        """file: below proc/ or sys/."""
        write(self._folder, {file: text})


def scraper(
    folder: Path, targets: Sequence[str], *, kafka: str = "127.0.0.1:1", topic: str = "otlp_metrics", exporter: str
) -> Service:
    """exporter: "kafka", or "file" for FOLDER/metrics.jsonl."""
    config = folder / "scraper.yaml"
    words = {"targets": ", ".join(targets), "folder": str(folder), "kafka": kafka, "topic": topic}
    config.write_text(COLLECTOR.format(**words, exporter=exporter))
    log = folder / "scraper.log"
    return Service(
        "the Collector",
        [built_collector(), "--config", f"file:{config}"],
        log=log,
        ready=lambda: "Everything is ready" in log.read_text(),
    )


def record(folder: Path) -> str:
    """The first whole scrape, as OTLP/JSON."""
    exporter = NodeExporter(folder, host=RECORDED_HOST)
    collector = scraper(folder, [exporter.address], exporter="file")
    scraped = folder / "metrics.jsonl"
    try:
        exporter.service.start()
        collector.start()
        eventually(lambda: scraped.exists() and "node_uname_info" in scraped.read_text(), what="a scrape")
    finally:
        collector.kill()
        exporter.service.kill()
    first = next(line for line in scraped.read_text().splitlines() if "node_uname_info" in line)
    request = json.loads(first.replace(exporter.address.split(":")[1], "9100"))
    for resource in request["resourceMetrics"]:
        for scope in resource["scopeMetrics"]:
            # Without what tells of the exporter's own memory and garbage.
            own = ("go_", "process_", "promhttp_", "scrape_", "up")
            scope["metrics"] = [metric for metric in scope["metrics"] if not metric["name"].startswith(own)]
            scope["metrics"].sort(key=lambda metric: metric["name"])
    return json.dumps(request, separators=(",", ":")).replace('{"name":"node_', '\n{"name":"node_') + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        RECORDED.write_text(record(Path(made)))
    sys.exit(subprocess.call(["git", "diff", "--stat", "--", str(RECORDED)]))
