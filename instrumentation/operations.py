"""Names of torch's operations and dtypes turned into the numbers of the vocabulary.

Pure tables, built once at install. Torch renames and splits variants between releases, so names map to families.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..telemetry.vocabulary import DTYPES, Op

#: Normalised stem of a name (hooks: ``ALLGATHER_BASE``; c10d schemas: ``_allgather_base_``) -> family. Longest first.
_FAMILIES: tuple[tuple[str, Op], ...] = (
    ("monitoredbarrier", Op.MONITORED_BARRIER),
    ("reducescatter", Op.REDUCE_SCATTER),
    ("allreduce", Op.ALL_REDUCE),
    ("allgather", Op.ALL_GATHER),
    ("alltoall", Op.ALL_TO_ALL),
    ("broadcast", Op.BROADCAST),
    ("barrier", Op.BARRIER),
    ("scatter", Op.SCATTER),
    ("gather", Op.GATHER),
    ("reduce", Op.REDUCE),
    ("recv", Op.RECV),
    ("send", Op.SEND),
)

#: Sizes of these may differ between members of a correct job: empty lists off the root, uneven splits, two ends.
NO_SIZE_OPS = frozenset({Op.GATHER, Op.SCATTER, Op.ALL_TO_ALL, Op.SEND, Op.RECV, Op.MONITORED_BARRIER})
#: Operations whose ``root`` is a rank: the root, or the peer of a point-to-point call.
ROOTED_OPS = frozenset({Op.BROADCAST, Op.REDUCE, Op.GATHER, Op.SCATTER, Op.SEND, Op.RECV})

#: Gloo's Work of these says that it completed only after its own wait().
SILENT_OPS = frozenset({Op.REDUCE_SCATTER, Op.SEND, Op.RECV})


def family_of(name: str) -> Op | None:
    """Family of a c10d operation by any of its names; None for what moves no data between ranks."""
    stem = name.lower().replace("_", "")
    for part, family in _FAMILIES:
        if part in stem:
            return family
    return None


def families_by_number(members: Mapping[str, Any]) -> dict[int, Op]:
    """Family of each operation by the number of ``HookOpName`` (its ``__members__``).

    Names of no family are left out, UNKNOWN is kept.
    """
    table: dict[int, Op] = {}
    for name, member in members.items():
        family = Op.UNKNOWN if name == "UNKNOWN" else family_of(name)
        if family is not None:
            table[int(member)] = family
    return table


def dtype_codes(torch: Any) -> dict[Any, int]:
    """A small code for each torch.dtype that this torch has."""
    return {getattr(torch, name): code for code, name in enumerate(DTYPES, start=1) if hasattr(torch, name)}


def sum_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of a list of tensors. Raises whatever a tensor without ``nbytes`` (sparse) raises."""
    return sum(tensor.nbytes for tensor in tensors)
