"""The functions of ``libamd_smi.so`` in C, made from AMD's own Python package: every name that it binds, every layout.

The package ``amdsmi`` binds 184 functions when it is imported, and knows each one's arguments and structures. It is
imported here over a library that takes every name, and asked for them. A function of a handle, numbers and one
structure answers from the script, field by field at the package's own offsets (``answer`` in ``node.c``); what has
buffers or waits is written by hand (``BY_HAND``); all others answer NOT_SUPPORTED, as of a GPU that does not have it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

BY_HAND = frozenset(
    {
        "amdsmi_init",
        "amdsmi_shut_down",
        "amdsmi_get_socket_handles",
        "amdsmi_get_processor_handles",
        "amdsmi_get_gpu_device_uuid",
        "amdsmi_get_gpu_process_list",
        "amdsmi_get_gpu_bad_page_info",
        "amdsmi_get_energy_count",
        "amdsmi_init_gpu_event_notification",
        "amdsmi_set_gpu_event_notification_mask",
        "amdsmi_get_gpu_event_notification",
        "amdsmi_stop_gpu_event_notification",
    }
)
#: Places in structures that the hand-written ones fill: macro -> structure, field.
OFFSETS = {
    "PROCESS_PID": ("amdsmi_proc_info_t", "pid"),
    "PROCESS_VRAM": ("amdsmi_proc_info_t", "memory_usage.vram_mem"),
    "PAGE_STATUS": ("amdsmi_retired_page_record_t", "status"),
    "EVENT_HANDLE": ("amdsmi_evt_notification_data_t", "processor_handle"),
    "EVENT_KIND": ("amdsmi_evt_notification_data_t", "event"),
    "EVENT_TEXT": ("amdsmi_evt_notification_data_t", "message"),
}
_MOST_NUMBERS = 2
#: ctypes has no public names for these.
_POINTER: Any = ctypes.POINTER(ctypes.c_int).__base__
_NUMBER: Any = ctypes.c_int.__base__


class _AnyLibrary:
    """Takes every name, and keeps what is said of it (restype, argtypes)."""

    def __init__(self) -> None:
        self.functions: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.functions.setdefault(name, mock.Mock(argtypes=None))


def layout(site: Path) -> tuple[Any, dict[str, Any]]:
    """The wrapper of the package below ``site``, and its functions by name."""
    library = _AnyLibrary()
    sys.path.insert(0, str(site))
    with mock.patch("ctypes.CDLL", return_value=library):
        import amdsmi.amdsmi_wrapper as wrapper  # type: ignore[import-not-found]
    return wrapper, library.functions


def _is_a(kind: Any, base: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def fields_of(kind: Any, path: str = "", offset: int = 0) -> Iterator[tuple[str, int, int, str, int]]:
    """Name, offset, bytes of one, kind (n number, s text, d float), and how many; of each leaf of a structure."""
    if _is_a(kind, ctypes.Structure):
        for name, inner, *_ in kind._fields_:
            if not name.startswith(("PADDING", "reserved")):
                place = getattr(kind, name).offset
                yield from fields_of(inner, f"{path}.{name}" if path else name, offset + place)
    elif _is_a(kind, ctypes.Array):
        item, count = kind._type_, kind._length_
        if item is ctypes.c_char:
            yield path, offset, count, "s", 1
        elif _is_a(item, _NUMBER):
            yield path, offset, ctypes.sizeof(item), "n", count
        else:
            for at in range(count):
                yield from fields_of(item, f"{path}.{at}", offset + at * ctypes.sizeof(item))
    elif _is_a(kind, _POINTER):
        return
    else:  # a number, or a union, which the script has as the number of all its bytes
        is_float = kind in (ctypes.c_float, ctypes.c_double)
        yield path, offset, ctypes.sizeof(kind), "d" if is_float else "n", 1


def is_answered(arguments: Any) -> bool:
    """Whether they are a handle, numbers, and one structure or number to be filled."""
    if not arguments or not 2 <= len(arguments) <= 2 + _MOST_NUMBERS or arguments[0] is not ctypes.c_void_p:
        return False
    *numbers, last = arguments[1:]
    is_filled = _is_a(last, _POINTER) and last._type_ is not ctypes.c_char
    return is_filled and all(n in (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32) for n in numbers)


def source(site: Path) -> str:
    wrapper, functions = layout(site)
    lines = ['#include "node.h"', ""]
    for macro, (structure, field) in OFFSETS.items():
        kind = getattr(wrapper, structure)
        (place,) = [offset for name, offset, *_ in fields_of(kind) if name == field] or [getattr(kind, field).offset]
        lines.append(f"const unsigned long {macro} = {place};")
    for structure in ("amdsmi_proc_info_t", "amdsmi_retired_page_record_t", "amdsmi_evt_notification_data_t"):
        size = ctypes.sizeof(getattr(wrapper, structure))
        lines.append(f"const unsigned long SIZE_{structure} = {size};")
    for name, function in sorted(functions.items()):
        if name in BY_HAND:
            continue
        if not is_answered(function.argtypes):
            lines.append(f"EXPORT unsigned {name}(void) {{ return NOT_SUPPORTED; }}")
            continue
        *numbers, pointer = function.argtypes[1:]
        rows = [f"{{\"{n}\", {o}, {b}, '{k}', {c}}}" for n, o, b, k, c in fields_of(pointer._type_)]
        key = name.removeprefix("amdsmi_").removeprefix("get_")
        lines.append(f"static const struct field fields_{name}[] = {{{', '.join(rows)}, {{0}}}};")
        parameters = [f"u64 n{at}" if ctypes.sizeof(n) == 8 else f"unsigned n{at}" for at, n in enumerate(numbers)]
        values = ", ".join(f"(long long)n{at}" for at in range(len(numbers)))
        lines.append(
            f"EXPORT unsigned {name}({', '.join(['void *handle', *parameters, 'void *out'])}) {{\n"
            f"    long long numbers[] = {{{values or 0}}};\n"
            f'    return answer(handle, "{key}", numbers, {len(numbers)}, fields_{name}, out, '
            f"{ctypes.sizeof(pointer._type_)});\n}}"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(source(Path(sys.argv[1])))
