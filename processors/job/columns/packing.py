"""One byte format for the state rows of this operator: a JSON head line, then raw numpy arrays.

No pickle: a state file may be read by another release, or by someone who does not trust it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

_descriptions: dict[np.dtype, str] = {}
_encode = json.JSONEncoder(separators=(",", ":")).encode


def pack(
    values: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray] | None = None,
    *,
    texts: Mapping[str, str] | None = None,
) -> bytes:
    """Bytes that ``unpack`` reads. values: must survive JSON. arrays: of any shape; dtype (structured too) is kept.

    texts: more values, as JSON that is made already.
    """
    arrays = arrays or {}
    made = _encode(values) if values else "{}"
    for name, text in texts.items() if texts else ():
        made = f'{made[:-1]}{"," if len(made) > 2 else ""}"{name}":{text}}}'
    listed = ",".join([f'["{name}",{_description(array.dtype)},{_shape(array)}]' for name, array in arrays.items()])
    head = f'{{"values":{made},"arrays":[{listed}]}}\n'
    # Arrays whose bytes lie in order are joined as they are: one copy of them instead of two.
    bodies: list[Any] = [array if array.flags.c_contiguous else array.tobytes() for array in arrays.values()]
    return b"".join([head.encode(), *bodies])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The values and arrays that ``pack`` was given, the arrays as writable copies.

    Raises ValueError where the head line is missing, no JSON, or does not fit the rest.
    """
    head_bytes, separator, body = data.partition(b"\n")
    if not separator:
        raise ValueError("state row without a head line")
    head = json.loads(head_bytes)
    arrays: dict[str, np.ndarray] = {}
    position = 0
    for name, description, shape in head["arrays"]:
        dtype = _dtype(description)
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(body, dtype, count, position).reshape(shape).copy()
        position += count * dtype.itemsize
    return head["values"], arrays


def _description(dtype: np.dtype) -> str:
    """The dtype as JSON; kept, because describing a structured one costs more than packing its rows."""
    found = _descriptions.get(dtype)
    if found is None:
        found = _descriptions[dtype] = json.dumps(dtype.descr if dtype.names else dtype.str)
    return found


def _shape(array: np.ndarray) -> str:
    """The shape as JSON; most arrays are rows, and writing a list costs as much as all the rest of the line."""
    return f"[{array.size}]" if array.ndim == 1 else str(list(array.shape))


def _dtype(description: Any) -> np.dtype:
    if isinstance(description, str):
        return np.dtype(description)
    return np.dtype([(item[0], item[1], *([tuple(item[2])] if len(item) > 2 else [])) for item in description])
