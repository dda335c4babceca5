"""A hardware error that the machine's firmware reports (CPER): the lines of its block say which part made it.

``{1}[Hardware Error]: event severity: fatal`` alone names nothing; ``section_type``, ``device_id``, ``class_code`` and
``DIMM location`` follow, all with the same number in front.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from .device import canonical_pci
from .event import DeviceKind, KernelEvent
from .holder import Holder
from .macros import PCI

CPER = "cper"

_SECTION = re.compile(r"\bsection_type: (?P<section>[^\n]{3,60})")
#: ``device_id: 0000:1b:00.0``, in newer kernels beside ``vendor_id: 0x10de, device_id: 0x2330`` in a line of its own.
_ADDRESS = re.compile(rf"\bdevice_id: (?P<device>{PCI})")
_VENDOR = re.compile(r"\bvendor_id: 0x(?P<vendor>[0-9a-f]{4})(?:, device_id: 0x(?P<model>[0-9a-f]{4}))?")
_CLASS = re.compile(r"\bclass_code: (?:0x)?(?P<class>[0-9a-f]{6})")
_DIMM = re.compile(r"\bDIMM location: (?P<dimm>[^\n]{1,80}?)\s*$")
_PHYSICAL = re.compile(r"\bphysical_address: (?P<address>0x[0-9a-f]{1,16})")
_MEMORY_ERROR = re.compile(r"\berror_type: \d+, (?P<what>[^\n]{3,60})")
_OTHER_FACTS = (_PHYSICAL, _MEMORY_ERROR)

#: By the class of a PCI device (its first two bytes, or one), then by its maker.
_KIND_OF_CLASS: Mapping[str, DeviceKind] = {
    "0108": DeviceKind.DISK,
    "01": DeviceKind.DISK,
    "02": DeviceKind.NIC,
    "03": DeviceKind.GPU,
    "12": DeviceKind.GPU,
}
_KIND_OF_MAKER: Mapping[str, DeviceKind] = {
    "10de": DeviceKind.GPU,
    "1da3": DeviceKind.GPU,
    "15b3": DeviceKind.NIC,
    "14e4": DeviceKind.NIC,
    "144d": DeviceKind.DISK,
}
_SECTIONS: tuple[tuple[str, DeviceKind, str], ...] = (
    ("memory", DeviceKind.MEMORY, "memory"),
    ("PCI", DeviceKind.PCIE, "pcie"),
    ("processor", DeviceKind.CPU, "cpu"),
)
#: NVIDIA's switches are bridges of their own class.
_NVSWITCH_CLASS, _NVIDIA, _BRIDGE = "0680", "10de", "06"


class CperFollower(Holder):
    """Holds the report until its block is over."""

    LINES = 60

    def __init__(self) -> None:
        super().__init__()
        self._maker, self._class = "", ""

    def takes(self, event: KernelEvent) -> bool:
        """Whether the event is a firmware report whose first line does not tell the device."""
        return event.event == CPER and not event.device and "event severity" in event.text

    def add(self, held: KernelEvent, text: str) -> tuple[KernelEvent, bool]:
        """The event with what this line tells, and whether nothing more is needed."""
        if "[Hardware Error]" not in text:
            return held, False  # other CPUs' lines stand in between
        if (section := _SECTION.search(text)) is not None:
            held = _in_section(held, section["section"])
        if not held.device and (at := _ADDRESS.search(text)) is not None:
            held = replace(held, device=canonical_pci(at["device"]) or "", device_kind=DeviceKind.PCIE)
        if not held.device and (dimm := _DIMM.search(text)) is not None:
            held = replace(held, device=dimm["dimm"], device_kind=DeviceKind.MEMORY)
        if (vendor := _VENDOR.search(text)) is not None:
            self._maker = vendor["vendor"]
        if (named := _CLASS.search(text)) is not None:
            self._class = named["class"]
        facts = {
            name: value for fact in _OTHER_FACTS if (m := fact.search(text)) for name, value in m.groupdict().items()
        }
        return (replace(held, facts={**facts, **held.facts}) if facts else held), False

    def finish(self, held: KernelEvent) -> KernelEvent:
        """The event with the kind of device that its vendor and class stand for; these are forgotten."""
        kind = kind_of(self._maker, self._class) if held.device_kind is DeviceKind.PCIE else None
        self._maker, self._class = "", ""
        return held if kind is None else replace(held, device_kind=kind)


def _in_section(held: KernelEvent, section: str) -> KernelEvent:
    """The first section is the one the report is about; later ones describe the same event again."""
    if "section" in held.facts:
        return held
    held = replace(held, facts={**held.facts, "section": section.strip()})
    for word, kind, component in _SECTIONS:
        if word in section:
            return replace(held, device_kind=kind, component=component)
    return held


def kind_of(maker: str, code: str) -> DeviceKind | None:
    """The kind of a PCI device, by its vendor and class as hexadecimal digits.

    None for bridges and what is not known.
    """
    if maker == _NVIDIA and code.startswith(_NVSWITCH_CLASS):
        return DeviceKind.NVSWITCH
    if code.startswith(_BRIDGE):
        return None
    return _KIND_OF_CLASS.get(code[:4]) or _KIND_OF_CLASS.get(code[:2]) or _KIND_OF_MAKER.get(maker)
