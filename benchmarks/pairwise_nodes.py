"""Sixteen nodes on this machine for ``pairwise_check``: namespaces on one bridge, a gloo rank in each, and faults.

Ranks live as long as the benchmark, since importing torch costs more than a draw. A node's or a link's rate is cut by
tbf and htb, packets are dropped by nftables, and a process of our own (``delay``) holds packets back: a TUN device
takes them, and what has waited long enough goes out on the cable as it is. All of it lies in a network namespace of
this command's own. Needs root, iproute2 and nftables.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

COUNT = 16
PORT = 29517
_INSIDE = "WHICHRANK_BENCH_OWN_NETWORK"
_ETH_P_IP = 0x0800
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def missing() -> str:
    """Why no such nodes can be made here; empty: they can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    absent = [name for name in ("ip", "tc", "nft", "unshare") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def enter_own_network(module: str) -> None:
    """Starts this command again in a network and mounts of its own, unless it is there; then the bridge is made."""
    if os.environ.get(_INSIDE) != str(os.getpid()):
        _start_again(module)
    run("mount", "-t", "tmpfs", "tmpfs", "/run/netns") if Path("/run/netns").is_dir() else os.makedirs("/run/netns")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "switch", "address", "02:00:0a:4d:ff:fe", "type", "bridge")
    run("ip", "address", "add", "10.77.1.254/24", "dev", "switch")
    run("ip", "link", "set", "switch", "up")


def _start_again(module: str) -> NoReturn:
    os.environ[_INSIDE] = str(os.getpid())
    os.execvp("unshare", ["unshare", "--net", "--mount", "--", sys.executable, "-m", module, *sys.argv[1:]])


def run(*words: str) -> None:
    """Runs a command. Raises RuntimeError with what it said where it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()[-300:]}")


def address(node: int) -> str:
    """A node's address."""
    return f"10.77.1.{node + 1}"


def mac(node: int) -> str:
    """A node's address on the bridge."""
    return f"02:00:0a:4d:01:{node + 1:02x}"


class Nodes:
    """All of them, with a rank each; ``check`` runs one check, ``faulty`` breaks something meanwhile."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count
        self._ranks: list[subprocess.Popen[str]] = []
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._draw = 0
        for node in range(count):
            name, cable = f"n{node}", f"c{node}"
            run("ip", "netns", "add", name)
            run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name, "address", mac(node))
            run("ip", "link", "set", cable, "master", "switch", "up")
            self._in(node, "ip", "link", "set", "lo", "up")
            self._in(node, "ip", "address", "add", f"{address(node)}/24", "dev", "eth0")
            self._in(node, "ip", "link", "set", "eth0", "up")
            for other in range(count):
                if other != node:
                    self._in(node, "ip", "neigh", "replace", address(other), "lladdr", mac(other), "dev", "eth0")
            for where in ("all", "eth0", "default"):
                # What comes back does not come from where a held-back packet went.
                self._in(node, "sh", "-c", f"echo 0 > /proc/sys/net/ipv4/conf/{where}/rp_filter")

    def start(self) -> None:
        """Starts the ranks and waits until they have met."""
        for node in range(self.count):
            environment = {
                **os.environ,
                "RANK": str(node), "WORLD_SIZE": str(self.count), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": address(0), "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": "eth0",
            }  # fmt: skip
            rank = subprocess.Popen(
                ["ip", "netns", "exec", f"n{node}", sys.executable, "-m", "benchmarks.pairwise_nodes", "rank"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )  # fmt: skip
            self._ranks.append(rank)
        self._answer()

    def check(self, seed: int) -> dict[str, Any]:
        """One check of all pairs; its outcome as JSON has it."""
        self._draw += 1
        first = self._ranks[0].stdin
        assert first is not None
        first.write(json.dumps({"draw": self._draw, "seed": seed}) + "\n")
        first.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        out = self._ranks[0].stdout
        assert out is not None
        line = out.readline()
        if not line:
            raise RuntimeError("the first rank has ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def _in(self, node: int, *words: str) -> None:
        run("ip", "netns", "exec", f"n{node}", *words)

    @contextlib.contextmanager
    def faulty(self, kind: str, places: list[tuple[int, ...]], amount: float) -> Iterator[None]:
        """While it lasts these nodes (of one number) and links (of two) have this fault.

        kind: "rate" (amount: Mbit/s), "loss" (share of packets), "delay" (seconds).
        """
        for place in places:
            getattr(self, f"_{kind}")(place, amount)
        try:
            yield
        finally:
            for helper in self._helpers:
                helper.terminate()
            for helper in self._helpers:
                helper.wait(10)
            self._helpers.clear()
            for node in {node for place in places for node in place}:
                for command in (
                    f"ip netns exec n{node} tc qdisc del dev eth0 root",
                    f"tc qdisc del dev c{node} root",
                    f"ip netns exec n{node} nft delete table inet lossy",
                ):
                    subprocess.run(command.split(), capture_output=True, timeout=30, check=False)

    def _rate(self, place: tuple[int, ...], mbit: float) -> None:
        shape = f"tbf rate {mbit:g}mbit burst 32k latency 200ms"
        if len(place) == 1:
            self._in(place[0], *f"tc qdisc add dev eth0 root {shape}".split())
            run(*f"tc qdisc add dev c{place[0]} root {shape}".split())
            return
        node, other = place
        for line in (
            "tc qdisc add dev eth0 root handle 1: htb default 1",
            "tc class add dev eth0 parent 1: classid 1:1 htb rate 40gbit quantum 60000",
            "tc class add dev eth0 parent 1: classid 1:2 htb rate 40gbit quantum 60000",
            f"tc qdisc add dev eth0 parent 1:2 handle 2: {shape}",
            f"tc filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {address(other)}/32 flowid 1:2",
        ):
            self._in(node, *line.split())

    def _loss(self, place: tuple[int, ...], share: float) -> None:
        node = place[0]
        of = f"ip daddr {address(place[1])}" if len(place) == 2 else "oifname eth0"
        self._in(node, "nft", "add table inet lossy")
        self._in(node, "nft", "add chain inet lossy out { type filter hook output priority 0 ; }")
        self._in(node, "nft", f"add rule inet lossy out {of} numgen random mod 1000 < {int(share * 1000)} drop")

    def _delay(self, place: tuple[int, ...], delay_s: float) -> None:
        node = place[0]
        others = list(place[1:]) or [other for other in range(self.count) if other != node]
        command = [sys.executable, "-m", "benchmarks.pairwise_nodes", "delay", str(node), str(delay_s)]
        helper = subprocess.Popen(
            ["ip", "netns", "exec", f"n{node}", *command, *map(str, others)], stdout=subprocess.PIPE
        )
        self._helpers.append(helper)
        assert helper.stdout is not None
        if helper.stdout.readline() != b"ready\n":
            raise RuntimeError("the forwarder did not start")

    def close(self) -> None:
        """Ends the ranks; the namespaces go with this process."""
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.wait(10)


def delay(node: int, delay_s: float, others: list[int]) -> None:
    """Takes what goes to the others, and sends it on after so long; until it is ended."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", b"late", _IFF_TUN | _IFF_NO_PI))
    subprocess.run(["ip", "link", "set", "late", "mtu", "1500", "txqueuelen", "5000", "up"], check=True)
    cable = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
    cable.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    for other in others:
        route = ["ip", "route", "replace", f"{address(other)}/32", "dev", "late", "src", address(node)]
        subprocess.run(route, check=True)
    macs = {socket.inet_aton(address(other)): bytes.fromhex(mac(other).replace(":", "")) for other in others}
    held: list[tuple[float, int, bytes]] = []
    count = 0
    print("ready", flush=True)
    while True:
        wait_s = max(held[0][0] - time.monotonic(), 0.0) if held else None
        if select.select([tun], [], [], wait_s)[0]:
            with contextlib.suppress(BlockingIOError):
                for _ in range(64):
                    packet = os.read(tun, 65536)
                    count += 1
                    heapq.heappush(held, (time.monotonic() + delay_s, count, packet))
        while held and held[0][0] <= time.monotonic():
            packet = heapq.heappop(held)[2]
            if target := macs.get(packet[16:20]):
                cable.sendto(packet, ("eth0", _ETH_P_IP, 0, 0, target))


def rank() -> None:
    """One rank: carries out check after check. The first one leads, and is told of each on its input."""
    import torch

    from whichrank.commands.check_pairs.exchange import Effort, Timed, TorchWay, exchange
    from whichrank.commands.check_pairs.pair_session import PairFollower, PairLeader, PairRank
    from whichrank.diagnosis.pair_checks.planner import PairPlanner

    torch.set_num_threads(1)
    dist: Any = torch.distributed
    store, number, world = next(dist.rendezvous("env://"))
    groups = dist.PrefixStore("groups", store)
    dist.init_process_group("gloo", store=groups, rank=number, world_size=world)
    place = PairRank(rank=torch.distributed.get_rank(), world=torch.distributed.get_world_size(), rails=1)
    effort = Effort(size_bytes=256 << 10, small=40, repeats=3, limit_s=40.0, enough_s=0.3)
    way = TorchWay(torch, "cpu")

    def measure(partner: int, tag: int, asked: Effort, leads: bool) -> Timed:
        return exchange(way, partner, tag, asked, leads=leads)

    torch.distributed.barrier()
    tag, draw = 1, 0
    if place.rank == 0:
        print("{}", flush=True)
    while True:
        draw += 1
        own = dist.PrefixStore(f"draw{draw}", store)
        follower = PairFollower(own, place, effort, measure, None, partial(way.renew, limit_s=120.0))
        if place.rank:
            own.get("go")
            follower.run()
            continue
        line = sys.stdin.readline()
        if not line:
            return
        asked = json.loads(line)
        own.set("go", "1")
        planner = PairPlanner(place.nodes, seed=asked["seed"])
        leader = PairLeader(own, place, effort, follower, until_s=time.monotonic() + 400.0, first_tag=tag)
        outcome = leader.run(planner, with_ring=False)
        tag = leader.tag
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank()
    else:
        delay(int(sys.argv[2]), float(sys.argv[3]), [int(word) for word in sys.argv[4:]])
