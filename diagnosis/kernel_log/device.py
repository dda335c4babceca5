"""Canonical names of devices, so that two lines about one device, and NVML, agree.

A PCI address is ``domain:bus:device[.function]``, lower case, the domain with 4 digits (more only where it needs them).
The function stands where the line tells it: Xid lines do not, most others do; compare with ``pci_slot``.
"""

from __future__ import annotations

import re

_PCI = re.compile(
    r"(?:PCI:)?(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})(?:\.(?P<function>[0-7]))?\Z",
    re.IGNORECASE,
)
_GPU_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)


def canonical_pci(text: str) -> str | None:
    """A PCI address in one form: "PCI:0000:B3:00", "00000000:b3:00.0" or "b3:00.0" -> "0000:b3:00[.0]".

    None for anything else.
    """
    found = _PCI.match(text)
    if found is None:
        return None
    domain = int(found["domain"] or "0", 16)
    name = f"{domain:04x}:{int(found['bus'], 16):02x}:{int(found['device'], 16):02x}"
    return name if found["function"] is None else f"{name}.{found['function']}"


def canonical_gpu(text: str) -> str | None:
    """A GPU's PCI address, or UUID as NVML writes it (``GPU-`` and lower-case digits), in one form; else None."""
    if _GPU_UUID.match(text):
        return text[:4].upper() + text[4:].lower()
    return canonical_pci(text)


def pci_slot(device: str) -> str:
    """The PCI address without its function, so equal for two lines about one board; other names as they are."""
    return device.rpartition(".")[0] if _PCI.match(device) and "." in device else device
