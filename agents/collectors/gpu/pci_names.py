"""PCI addresses in one form, whoever writes them."""

from __future__ import annotations

import re


def normalise_pci(text: str) -> str:
    """A PCI address as sysfs has it: "0000:1b:00.0" for "00000000:1B:00.0".

    What is no PCI address comes back as it is.
    """
    found = re.fullmatch(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?", text)
    if found is None:
        return text
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function or '0'}"
