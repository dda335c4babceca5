"""Do two ranks' entries belong to the same call? PyTorch's match states, by the rules in ``operations.tsv``. Pure.

The order of the tests is that of PyTorch's own analyser (type, input sizes, output sizes, a member's own sizes, data
types, state), so that both give the same answer to the same pair.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from importlib.resources import files
from math import prod

from .rank_dump import DumpEntry, Sizes


class MatchState(str, Enum):
    FULLY_MATCHED = "FULLY_MATCHED"
    COLLECTIVE_TYPE_MISMATCH = "COLLECTIVE_TYPE_MISMATCH"
    SIZE_OR_SYNTAX_MISMATCH = "SIZE_OR_SYNTAX_MISMATCH"
    COLLECTIVE_STATE_MISMATCH = "COLLECTIVE_STATE_MISMATCH"
    COLLECTIVE_DTYPE_MISMATCH = "COLLECTIVE_DTYPE_MISMATCH"
    #: Cannot be said of two members alone: the sizes of an uneven all-to-all only add up over all of them.
    UNDECIDED = "UNDECIDED"


class Numel(str, Enum):
    """How a member's input and output relate."""

    FREE = "-"
    EQUAL = "equal"
    GATHER = "gather"
    SCATTER = "scatter"
    UNEVEN = "uneven"
    MARKER = "marker"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRule:
    """A row of operations.tsv; its head says what the columns mean."""

    inputs: bool
    outputs: bool
    numel: Numel
    input_dtypes: bool
    output_dtypes: bool
    both: bool
    synchronises: bool


ANY_OPERATION = "*"


@lru_cache(maxsize=1)
def operation_rules() -> dict[str, OperationRule]:
    """By operation: what must be equal between ranks that make the same call, from operations.tsv."""
    text = files(__package__).joinpath("operations.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader((line for line in text.splitlines() if not line.startswith("#")), delimiter="\t")
    return {
        row["op"]: OperationRule(
            inputs=row["inputs"] == "1",
            outputs=row["outputs"] == "1",
            numel=Numel(row["numel"]),
            input_dtypes=row["input_dtypes"] == "1",
            output_dtypes=row["output_dtypes"] == "1",
            both=row["both"] == "1",
            synchronises=row["synchronises"] == "1",
        )
        for row in rows
    }


def rule_of(op: str) -> OperationRule:
    """The operation's rule, or the one for all that are not listed."""
    rules = operation_rules()
    return rules.get(op) or rules[ANY_OPERATION]


def match_state(one: DumpEntry, other: DumpEntry, group_size: int) -> MatchState:
    """Whether ``other`` is the same call as ``one``, which is taken to be right."""
    if one.op in ("send", "recv"):
        return _match_pair(one, other)
    rule = rule_of(one.op)
    if rule.numel is Numel.MARKER:
        return MatchState.FULLY_MATCHED if one.op == other.op else MatchState.SIZE_OR_SYNTAX_MISMATCH
    mismatch = mismatch_of(one, other, group_size)
    if mismatch is not None:
        return mismatch
    if one.state != other.state:
        return MatchState.COLLECTIVE_STATE_MISMATCH
    return MatchState.UNDECIDED if rule.numel is Numel.UNEVEN else MatchState.FULLY_MATCHED


def mismatch_of(one: DumpEntry, other: DumpEntry, group_size: int) -> MatchState | None:
    """In what ``other`` differs from ``one``, a collective that is taken to be right; None: in nothing that matters.

    Whether they are done is not compared.
    """
    rule = rule_of(one.op)
    if one.op != other.op:
        return MatchState.COLLECTIVE_TYPE_MISMATCH
    if (rule.inputs and one.input_sizes != other.input_sizes) or (
        rule.outputs and one.output_sizes != other.output_sizes
    ):
        return MatchState.SIZE_OR_SYNTAX_MISMATCH
    if not keeps_numel(other, group_size):
        return MatchState.SIZE_OR_SYNTAX_MISMATCH
    return MatchState.COLLECTIVE_DTYPE_MISMATCH if _dtypes_differ(rule, one, other) else None


def keeps_numel(entry: DumpEntry, group_size: int) -> bool:
    """Whether the sizes of one member's input and output go together. An uneven operation always does by itself."""
    numel = rule_of(entry.op).numel
    if numel is Numel.EQUAL:
        return entry.input_sizes == entry.output_sizes
    if numel is Numel.GATHER:
        return _is_gathered(entry.output_sizes, entry.input_sizes, group_size)
    if numel is Numel.SCATTER:
        return _is_gathered(entry.input_sizes, entry.output_sizes, group_size)
    return True


def comparable_key(entry: DumpEntry) -> tuple[object, ...]:
    """What must be equal on all members for them to have made the same call; members vote with it on who is odd."""
    rule = rule_of(entry.op)
    return (
        entry.op,
        entry.input_sizes if rule.inputs else None,
        entry.output_sizes if rule.outputs else None,
        entry.input_dtypes if rule.input_dtypes and _has_tensors(entry.input_sizes) else None,
        entry.output_dtypes if rule.output_dtypes and _has_tensors(entry.output_sizes) else None,
    )


def numel(sizes: Sizes) -> int:
    """The number of elements of all tensors together. sizes: their shapes."""
    return sum(prod(shape) for shape in sizes)


def _is_gathered(gathered: Sizes, shard: Sizes, group_size: int) -> bool:
    """Whether ``gathered`` holds one shard of each member: flattened, or as a list of buffers."""
    if not gathered or not shard:
        return gathered == shard
    if prod(gathered[0]) == prod(shard[0]) * group_size:
        return True
    return len(gathered) == len(shard) * group_size and numel(gathered) == numel(shard) * group_size


def _match_pair(one: DumpEntry, other: DumpEntry) -> MatchState:
    sends = one.op == "send"
    sent, received = (one.input_sizes, other.output_sizes) if sends else (one.output_sizes, other.input_sizes)
    is_pair = (
        other.op == ("recv" if sends else "send")
        and one.target == other.target
        and (one.source is None or other.source is None or one.source == other.source)
        and sent == received
    )
    return MatchState.FULLY_MATCHED if is_pair else MatchState.SIZE_OR_SYNTAX_MISMATCH


def _dtypes_differ(rule: OperationRule, one: DumpEntry, other: DumpEntry) -> bool:
    def differ(left: tuple[str, ...], left_sizes: Sizes, right: tuple[str, ...], right_sizes: Sizes) -> bool:
        return _has_tensors(left_sizes) and _has_tensors(right_sizes) and left != right

    return (
        (rule.both and differ(one.input_dtypes, one.input_sizes, one.output_dtypes, one.output_sizes))
        or (rule.input_dtypes and differ(one.input_dtypes, one.input_sizes, other.input_dtypes, other.input_sizes))
        or (rule.output_dtypes and differ(one.output_dtypes, one.output_sizes, other.output_dtypes, other.output_sizes))
    )


def _has_tensors(sizes: Sizes) -> bool:
    return bool(sizes) and bool(sizes[0])
