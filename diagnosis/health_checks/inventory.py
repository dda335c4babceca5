"""A node's hardware against the list of what it should have: PCI links, InfiniBand and Ethernet interfaces.

Pure: ``files`` maps paths of /sys to their contents, whoever read them. The list (JSON) has the sections ``pci``
(address -> device, link_speed, link_width), ``ib`` (link_rate, firmware_version, interfaces) and ``eth``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..counters.sample import LinkState, parse_physical, parse_rate, parse_state
from .outcome import CheckOutcome, CheckStatus, outcome

_DEVICE = re.compile(r"/sys/bus/pci/devices/([0-9a-f:.]+)/(infiniband|net)/([^/]+)/(.+)")
_SPEED = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*GT/s", re.ASCII)
Files = Mapping[str, str]
Inventory = Mapping[str, Any]


def pci_links(inventory: Inventory, files: Files) -> CheckOutcome:
    """Whether every PCI device of the list is on the bus, with the speed and width that it should have."""
    return outcome("pci", _pci(inventory.get("pci", {}), files), "all PCIe devices are there and at full speed")


def infiniband_links(inventory: Inventory, files: Files) -> CheckOutcome:
    """Whether every InfiniBand interface of the list is there, up and as it should be.

    That is: on its own adapter, at its rate, with a known firmware.
    """
    wanted = inventory.get("ib", {})
    count = len(wanted.get("interfaces", {}))
    return outcome("infiniband", _infiniband(wanted, _observed(files)), f"{count} InfiniBand interfaces are up")


def ethernet_links(inventory: Inventory, observed: Mapping[str, Any]) -> CheckOutcome:
    """Whether every Ethernet interface of the list is there, up and as it should be.

    observed: ``intf_status`` (ip -json addr), ``link_speed`` and ``phys_macaddr`` (interface -> value), and
    ``intf_ifcfg``, the configuration that names each interface's hardware address.
    """
    wanted = inventory.get("eth", {})
    return outcome("ethernet", _ethernet(wanted, observed), f"{len(wanted)} Ethernet interfaces are up")


def _pci(wanted: Mapping[str, Any], files: Files) -> Iterator[tuple[CheckStatus, str]]:
    for address, entry in wanted.items():
        name = f"{entry.get('dev', '?')} ({address}, {entry.get('slot', '?')})"
        places = (f"/sys/class/pci_bus/{address[:7]}/device/{address}", f"/sys/bus/pci/devices/{address}")
        speed, width = (
            next((files[path] for place in places if (path := f"{place}/current_link_{fact}") in files), None)
            for fact in ("speed", "width")
        )
        if speed is None or width is None:
            yield CheckStatus.CRITICAL, f"{name} is not on the bus"
            continue
        allowed = [_gigatransfers(each) for each in entry.get("link_speed", ())]
        if allowed and _gigatransfers(speed) not in allowed:
            yield CheckStatus.CRITICAL, f"{name} runs at {speed.strip()}, not at {entry['link_speed'][0]}"
        if "link_width" in entry and width.strip() != str(entry["link_width"]):
            yield CheckStatus.CRITICAL, f"{name} has {width.strip()} lanes, not {entry['link_width']}"


def _infiniband(
    wanted: Mapping[str, Any], observed: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[CheckStatus, str]]:
    rate = parse_rate(wanted.get("link_rate"))
    firmwares = {str(each).strip() for each in wanted.get("firmware_version", ())}
    for interface, entry in wanted.get("interfaces", {}).items():
        seen = observed.get(interface)
        if seen is None:
            yield CheckStatus.CRITICAL, f"{interface} is missing"
            continue
        adapter = seen.get("adapter", "")
        if adapter != entry.get("mlx", adapter):
            yield CheckStatus.CRITICAL, f"{interface} is bound to {adapter or 'no adapter'}, not to {entry['mlx']}"
        if parse_state(seen.get("operstate")) is not LinkState.ACTIVE:
            yield CheckStatus.CRITICAL, f"{interface} is {seen.get('operstate', 'unknown').strip()}"
        if parse_state(seen.get("state")) is not LinkState.ACTIVE or parse_physical(seen.get("phys_state")) != "linkup":
            states = "/".join(seen.get(name, "unknown").strip() for name in ("state", "phys_state"))
            yield CheckStatus.CRITICAL, f"{interface} ({adapter}): the port is {states}"
        have = parse_rate(seen.get("rate"))
        if rate is not None and (have is None or have.gbps < rate.gbps):
            yield CheckStatus.CRITICAL, f"{interface} ({adapter}) runs at {seen.get('rate', 'unknown').strip()}"
        if firmwares and seen.get("fw_ver", "").strip() not in firmwares:
            yield CheckStatus.CRITICAL, f"{interface} ({adapter}) has firmware {seen.get('fw_ver', 'unknown').strip()}"


def _ethernet(wanted: Mapping[str, Any], observed: Mapping[str, Any]) -> Iterator[tuple[CheckStatus, str]]:
    interfaces = {each.get("ifname"): each for each in observed.get("intf_status", ()) if isinstance(each, dict)}
    for entry in wanted.values():
        name = entry["netdev"]
        seen = interfaces.get(name)
        if seen is None:
            yield CheckStatus.CRITICAL, f"{name} is missing"
            continue
        if absent := [flag for flag in entry.get("flags", ()) if flag not in seen.get("flags", ())]:
            yield CheckStatus.CRITICAL, f"{name} is not {', '.join(absent)}"
        if "mtu" in entry and seen.get("mtu") != entry["mtu"]:
            yield CheckStatus.CRITICAL, f"{name} has an MTU of {seen.get('mtu')}, not {entry['mtu']}"
        address = observed.get("phys_macaddr", {}).get(name)
        configured = observed.get("intf_ifcfg", {}).get(name, {}).get("HWADDR")
        if address and configured and address.strip().lower() != configured.strip().lower():
            yield (
                CheckStatus.CRITICAL,
                f"{name} is configured for {configured}, and the card is {address}: it was swapped",
            )
        speed = str(observed.get("link_speed", {}).get(name, "")).strip()
        if speed.isascii() and speed.isdigit() and int(speed[:12]) < entry.get("speed", 0):
            yield CheckStatus.WARN, f"{name} runs at {speed} Mb/s, not at {entry['speed']}"


def _observed(files: Files) -> dict[str, dict[str, str]]:
    """Interface -> what its PCI device's adapter and the interface itself say."""
    adapters: dict[str, dict[str, str]] = {}
    interfaces: dict[str, tuple[str, dict[str, str]]] = {}
    for path, content in files.items():
        if (found := _DEVICE.fullmatch(path)) is None:
            continue
        address, kind, name, leaf = found.groups()
        if kind == "infiniband":
            facts = adapters.setdefault(address, {})
            facts["adapter"] = name
            facts[leaf.rpartition("/")[2] if leaf.startswith("ports/1/") else leaf] = content
        else:
            interfaces.setdefault(name, (address, {}))[1][leaf] = content
    return {
        name: {**adapters.get(address, {}), "operstate": facts.get("operstate", "")}
        for name, (address, facts) in interfaces.items()
    }


def _gigatransfers(text: str) -> float | None:
    found = _SPEED.match(text)
    return float(found.group(1)) if found else None
