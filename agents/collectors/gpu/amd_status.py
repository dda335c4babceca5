"""What the refusals of AMD's library mean, by their numbers (``amdsmi_status_t``), and its answers without a value."""

from __future__ import annotations

from typing import Any

SUCCESS = 0
_INVALID, _NOT_SUPPORTED, _NOT_YET_IMPLEMENTED, _FAIL_LOAD_MODULE, _FAIL_LOAD_SYMBOL = 1, 2, 3, 4, 5
_NO_PERMISSION, _DIRECTORY_NOT_FOUND, _NOT_INIT, _DRIVER_NOT_LOADED, NO_DATA = 10, 20, 32, 34, 40
TIMEOUT = 8
_SETTING_UNAVAILABLE = 55
_ALL_BITS = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)

#: This driver or GPU never gives that value: not asked again until the driver is opened anew.
NEVER = frozenset(
    {
        *(_INVALID, _NOT_SUPPORTED, _NOT_YET_IMPLEMENTED, _FAIL_LOAD_MODULE, _FAIL_LOAD_SYMBOL),
        *(_NO_PERMISSION, _DIRECTORY_NOT_FOUND, _SETTING_UNAVAILABLE),
    }
)
#: The driver was unloaded, or loaded anew under us.
AWAY = frozenset({_NOT_INIT, _DRIVER_NOT_LOADED})


def status_of(error: Exception) -> int:
    """The number of a refusal by the library; -1 of any other exception of its package."""
    code = getattr(error, "err_code", None)
    return abs(code) if isinstance(code, int) else -1


def words_of(error: Exception) -> str:
    """The library's own words for a refusal, in one line."""
    said = getattr(error, "err_info", None) or str(error)
    return " ".join(str(said).split())[:120]


def number(raw: Any) -> float | None:
    """A value that the package gives; None for its "N/A", for what is no number, and for all bits set.

    Structures hold all bits of a field for "not here"; where a release has made the field wider than the package takes
    it for, it comes through as a number.
    """
    if not isinstance(raw, (int, float)) or raw in _ALL_BITS:
        return None
    return float(raw)
