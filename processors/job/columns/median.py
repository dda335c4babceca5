"""The median, for the small arrays that steps and windows of steps are."""

from __future__ import annotations

from typing import Any

import numpy as np


def median(values: np.ndarray, axis: int | None = None, keepdims: bool = False) -> Any:
    """As ``numpy.median``, for values without NaN, and several times as fast for a few hundred of them.

    values: of any shape and unit, which the result shares; nan for none.
    """
    if axis is None:
        values, axis = values.reshape(-1), 0
    ordered = np.sort(values, axis=axis)
    size = values.shape[axis]
    if not size:
        return np.median(values, axis=axis, keepdims=keepdims)
    middle: list[Any] = [slice(None)] * values.ndim
    middle[axis] = slice((size - 1) // 2, size // 2 + 1)
    inner = ordered[tuple(middle)]
    exact = np.float64 if values.dtype.kind in "iu" else None  # as ``mean`` adds, without what it does around it
    return inner.sum(axis=axis, dtype=exact, keepdims=keepdims) / inner.shape[axis]
