"""Errors that one of AMD's GPUs counts: by block (RAS), bad pages of its memory, and its links to the others (XGMI)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .amd_readings import AmdReading, value
from .amd_status import AWAY, NEVER, status_of
from .values import Value

_COUNTS: Mapping[str, str] = {
    "corrected": "correctable_count",
    "uncorrected": "uncorrectable_count",
    "deferred": "deferred_count",
}
#: The block of the memory's controllers. Its errors are NVIDIA's of DRAM; those of other blocks have no word there.
_MEMORY_BLOCK = "UMC"
_NO_BLOCKS = ("INVALID", "RESERVED", "LAST")
#: ``status`` of a bad page: amdsmi_memory_page_status_t.
_PAGE_PENDING, _PAGE_UNRESERVABLE = 1, 2
_LINK_STATES = {"U": "up", "D": "down"}
_KB = 1e3


class BlockErrors:
    """Error counts by block, of those blocks of one GPU that count any: the others are asked once."""

    def __init__(self) -> None:
        self._blocks: list[Any] | None = None

    def read(self, smi: Any, handle: Any) -> Sequence[Value]:
        """Counts since the driver was loaded. A block that refuses is left out from then on."""
        if self._blocks is None:
            self._blocks = [block for block in smi.AmdSmiGpuBlock if block.name not in _NO_BLOCKS]
        found: list[Value] = []
        for block in list(self._blocks):
            try:
                counts = smi.amdsmi_get_gpu_ecc_count(handle, block)
            except smi.AmdSmiException as error:
                status = status_of(error)
                if status in AWAY:
                    raise
                if status in NEVER:
                    self._blocks.remove(block)
                continue
            found += _of_block(block.name, counts)
        return found


def _of_block(block: str, counts: Mapping[str, Any]) -> Iterator[Value]:
    for error, key in _COUNTS.items():
        if block != _MEMORY_BLOCK:
            yield from value(
                "whichrank.gpu.ras.errors", counts.get(key), error__type=error, whichrank__gpu__block=block.lower()
            )
            continue
        yield from value(
            "whichrank.gpu.ecc.errors",
            counts.get(key),
            error__type=error,
            whichrank__gpu__since="driver_load",
            whichrank__gpu__memory="dram",
        )


def _total(smi: Any, handle: Any) -> Sequence[Value]:
    counts = smi.amdsmi_get_gpu_total_ecc_count(handle)
    return tuple(
        point
        for error, key in _COUNTS.items()
        for point in value("hw.errors", counts.get(key), hw__type="gpu", error__type=error)
    )


def _ecc_mode(smi: Any, handle: Any) -> Sequence[Value]:
    return (Value("whichrank.gpu.ecc.mode", float(smi.amdsmi_get_gpu_ecc_enabled(handle) != 0)),)


def _bad_pages(smi: Any, handle: Any) -> Sequence[Value]:
    """Pages out of use, whether more wait for a reset, and what share they are of those that the driver takes."""
    states = Counter(int(page["status"]) for page in smi.amdsmi_get_gpu_bad_page_info(handle))
    out_of_use = sum(states.values()) - states[_PAGE_PENDING]
    try:
        most = smi.amdsmi_get_gpu_bad_page_threshold(handle)
    except smi.AmdSmiException:
        most = 0  # the driver is told not to look at it
    share = [Value("whichrank.gpu.retired_pages.share", out_of_use / most)] if most else []
    return (
        Value("whichrank.gpu.retired_pages", float(out_of_use), {"error.type": "uncorrected"}),
        Value("whichrank.gpu.retired_pages.pending", float(states[_PAGE_PENDING] > 0)),
        Value("whichrank.gpu.retired_pages.failure", float(states[_PAGE_UNRESERVABLE] > 0)),
        *share,
    )


def _xgmi_errors(smi: Any, handle: Any) -> Sequence[Value]:
    """0 none, 1 one, 2 several, since somebody last reset this state."""
    return tuple(value("whichrank.gpu.xgmi.error_state", smi.amdsmi_gpu_xgmi_error_status(handle)))


def _xgmi_traffic(smi: Any, handle: Any) -> Sequence[Value]:
    told = smi.amdsmi_get_link_metrics(handle)
    links = told.get("links", ())[: int(told.get("num_links") or 0)]
    return tuple(
        Value(
            "whichrank.gpu.xgmi.io", float(sum(int(link[key]) for link in links)) * _KB, {"network.io.direction": way}
        )
        for way, key in (("receive", "read"), ("transmit", "write"))
    )


#: Beside ``BlockErrors``, which remembers.
ERROR_READINGS: tuple[AmdReading, ...] = (
    AmdReading("ECC errors", _total),
    AmdReading("ECC mode", _ecc_mode, slow=True),
    AmdReading("bad pages", _bad_pages, slow=True),
    AmdReading("XGMI errors", _xgmi_errors),
    AmdReading("XGMI traffic", _xgmi_traffic),
)


class XgmiLinks:
    """Links of one GPU to the others of its node, as long as its handle is good."""

    def __init__(self) -> None:
        self._up: dict[int, bool] = {}
        #: Those that were down once: their points are told from then on.
        self._conspicuous: set[int] = set()

    def look(self, smi: Any, handle: Any) -> tuple[Sequence[Value], Sequence[tuple[int, bool]]]:
        """Their values, and the links that went down or up since the last look (True: up).

        Links that the board has switched off are none. Raises the package's exception where there is no answer.
        """
        told = smi.amdsmi_get_gpu_xgmi_link_status(handle)
        now = {at: state == "U" for at, state in enumerate(told.get("status", ())) if state in _LINK_STATES}
        changes = [(at, up) for at, up in now.items() if up != self._up.get(at, True)]
        self._up = now
        self._conspicuous |= {at for at, up in now.items() if not up}
        counts = Counter(_LINK_STATES["U" if up else "D"] for up in now.values())
        values = [
            Value("whichrank.gpu.xgmi.links", float(counts[state]), {"whichrank.gpu.xgmi.state": state})
            for state in _LINK_STATES.values()
            if now
        ]
        values += [
            Value("whichrank.gpu.xgmi.up", float(now[at]), {"whichrank.gpu.xgmi.link": str(at)})
            for at in sorted(self._conspicuous & now.keys())
        ]
        return values, changes
