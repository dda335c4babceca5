"""NVLinks of a GPU: which are up, where they lead, what they counted.

Each generation counts other things, and answers another call: NVLink 2 to 4 have CRC, replay and recovery counters per
link, NVLink 5 (Blackwell) has receive, symbol and recovery counters as field values of a scope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml as nvml

from .driver import LOST, NEVER
from .fields import read_fields
from .pci_names import normalise_pci
from .values import Value

_MAX_LINKS = 36
_MBPS = 1e6
_KIB = 1024
#: nvmlDeviceGetFieldValues: of all links together.
_ALL_LINKS = 0xFFFFFFFF
_REMOTE = {0: "gpu", 1: "ibm_npu", 2: "switch"}

#: By nvmlDeviceGetNvLinkErrorCounter.
_COUNTERS = {
    nvml.NVML_NVLINK_ERROR_DL_REPLAY: "replay",
    nvml.NVML_NVLINK_ERROR_DL_RECOVERY: "recovery",
    nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT: "crc_flit",
    nvml.NVML_NVLINK_ERROR_DL_CRC_DATA: "crc_data",
    nvml.NVML_NVLINK_ERROR_DL_ECC_DATA: "ecc_data",
}
#: Fields with the sums of the same over all links: one call says that nothing happened.
_TOTALS = {52: "replay", 59: "recovery", 38: "crc_flit", 45: "crc_data", 160: "ecc_data"}
#: Fields of NVLink 5, per link.
_SCOPED = {
    206: "malformed_packet",
    207: "buffer_overrun",
    208: "receive",
    209: "receive_remote",
    211: "local_link_integrity",
    212: "transmit_discard",
    214: "recovery_failed",
    215: "recovery",
    219: "effective",
    221: "symbol",
}
_SPEED = 164
#: Payload counters: NVLink 5 has bytes per link, those before have KiB of all links.
_BYTES = {202: "transmit", 204: "receive"}
_KIBIBYTES = {138: "transmit", 139: "receive"}


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A link that went up or down since the last look, and where it leads ("" unknown)."""

    link: int
    up: bool
    remote: str
    remote_pci_bus: str


@dataclass(slots=True)
class _Link:
    number: int
    up: bool
    remote: str = ""
    remote_pci_bus: str = ""
    #: Something was wrong with it once: its points are told from then on.
    conspicuous: bool = False
    errors: dict[str, float] = field(default_factory=dict)


class Links:
    """Of one GPU, as long as its handle is good. Any method may raise NVMLError of the GPU as a whole (``LOST``)."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._links = [link for number in range(_MAX_LINKS) if (link := _first_look(handle, number)) is not None]
        self._by_number = {link.number: link for link in self._links}
        #: (field, scope) that this GPU answers; None until it was asked.
        self._fields: list[tuple[int, int]] | None = None
        self._per_link_counters = dict(_COUNTERS)

    def __len__(self) -> int:
        return len(self._links)

    def look(self) -> tuple[list[Value], list[LinkChange]]:
        """Values of all links, and the links that went up or down since the last look; both empty without links.

        Raises NVMLError where the GPU as a whole does not answer.
        """
        if not self._links:
            return [], []
        changes = self._look_at_states()
        fields = self._read_fields()
        self._count_errors(fields)
        return [*self._state_values(fields), *self._error_values(), *_traffic(fields)], changes

    def _look_at_states(self) -> list[LinkChange]:
        changes = []
        for link in self._links:
            try:
                up = bool(nvml.nvmlDeviceGetNvLinkState(self._handle, link.number))
            except nvml.NVMLError as error:
                if error.value not in NEVER:
                    raise
                continue
            if up != link.up:
                link.up, link.conspicuous = up, True
                changes.append(LinkChange(link.number, up, link.remote, link.remote_pci_bus))
        return changes

    def _read_fields(self) -> dict[tuple[int, int], float]:
        wanted = self._fields
        if wanted is None:
            wanted = [(number, 0) for number in _TOTALS] + [(number, _ALL_LINKS) for number in _KIBIBYTES]
            wanted += [(number, link.number) for number in (*_SCOPED, *_BYTES, _SPEED) for link in self._links]
        answers = dict(zip(wanted, read_fields(self._handle, wanted), strict=True))
        self._fields = [key for key, answer in answers.items() if answer.status not in NEVER]
        return {key: answer.number for key, answer in answers.items() if answer.status == nvml.NVML_SUCCESS}

    def _count_errors(self, fields: dict[tuple[int, int], float]) -> None:
        """By a call per link only where the sum says that something was counted, or there is no sum."""
        for (number, scope), count in fields.items():
            if number in _SCOPED:
                self._by_number[scope].errors[_SCOPED[number]] = count
        for counter, word in list(self._per_link_counters.items()):
            total = next((fields.get((number, 0)) for number, name in _TOTALS.items() if name == word), None)
            for link in self._links:
                if total == 0:
                    link.errors[word] = 0.0
                elif not self._count_by_call(link, counter, word):
                    break  # this GPU does not count that

    def _count_by_call(self, link: _Link, counter: int, word: str) -> bool:
        try:
            link.errors[word] = float(nvml.nvmlDeviceGetNvLinkErrorCounter(self._handle, link.number, counter))
        except nvml.NVMLError as error:
            if error.value not in NEVER:
                raise
            del self._per_link_counters[counter]
            return False
        return True

    def _state_values(self, fields: dict[tuple[int, int], float]) -> list[Value]:
        up = sum(link.up for link in self._links)
        values = [
            Value("whichrank.gpu.nvlink.links", float(up), {"whichrank.gpu.nvlink.state": "up"}),
            Value("whichrank.gpu.nvlink.links", float(len(self._links) - up), {"whichrank.gpu.nvlink.state": "down"}),
        ]
        speeds = [fields[_SPEED, link.number] for link in self._links if (_SPEED, link.number) in fields and link.up]
        if speeds:
            values.append(Value("whichrank.gpu.nvlink.speed.slowest", min(speeds) * _MBPS))
        for link in self._links:
            if link.conspicuous:
                labels = {
                    "whichrank.gpu.nvlink.link": str(link.number),
                    "whichrank.gpu.nvlink.remote": link.remote_pci_bus,
                }
                values.append(Value("whichrank.gpu.nvlink.up", float(link.up), labels))
        return values

    def _error_values(self) -> list[Value]:
        sums: dict[str, float] = {}
        values = []
        for link in self._links:
            for word, count in link.errors.items():
                sums[word] = sums.get(word, 0.0) + count
                if count:
                    labels = {"whichrank.gpu.nvlink.link": str(link.number), "error.type": word}
                    values.append(Value("whichrank.gpu.nvlink.link.errors", count, labels))
        values += [Value("whichrank.gpu.nvlink.errors", count, {"error.type": word}) for word, count in sums.items()]
        return values


def _traffic(fields: dict[tuple[int, int], float]) -> Sequence[Value]:
    sums: dict[str, float] = {}
    for (number, _), value in fields.items():
        if number in _BYTES:
            sums[_BYTES[number]] = sums.get(_BYTES[number], 0.0) + value
    for number, direction in _KIBIBYTES.items():
        if direction not in sums and (number, _ALL_LINKS) in fields:
            sums[direction] = fields[number, _ALL_LINKS] * _KIB
    return [Value("whichrank.gpu.nvlink.io", total, {"network.io.direction": way}) for way, total in sums.items()]


def _first_look(handle: Any, number: int) -> _Link | None:
    """None: the GPU has no such link."""
    try:
        link = _Link(number, bool(nvml.nvmlDeviceGetNvLinkState(handle, number)))
    except nvml.NVMLError as error:
        if error.value in LOST or error.value not in NEVER:
            raise
        return None
    link.remote = _REMOTE.get(_ask(lambda: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number)), "")
    pci = _ask(lambda: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number))
    if pci is not None:
        bus = pci.busId
        link.remote_pci_bus = normalise_pci(bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus)
    return link


def _ask(call: Callable[[], Any]) -> Any:
    """None: this GPU does not say."""
    try:
        return call()
    except nvml.NVMLError as error:
        if error.value not in NEVER:
            raise
        return None
