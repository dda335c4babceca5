"""What pairs measured: a row per exchange, as columns, and which of them stand out from what is usual. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from math import exp, inf
from typing import Literal

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]


class PairPhase(IntEnum):
    """Why a pair was measured. What is usual is learned of looks, and of the controls of a confirmation."""

    LOOK = 0
    #: Of all pairs only those that stood out were kept.
    SWEEP = 1
    CONFIRM = 2
    CONTROL = 3


class Quantity(str, Enum):
    """What is measured of a pair; of each, more is worse."""

    #: Seconds of the best exchange of many bytes both ways.
    SECONDS = "bandwidth"
    #: Seconds of the median of small exchanges.
    LATENCY = "latency"
    #: Seconds by which the longest exchange was longer than such are: what was lost is sent again.
    STALL = "stalls"
    FAILED = "no answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One pair's measurement on one rail. seconds, latency_s, stall_s as ``Quantity`` says; failed: no answer came."""

    phase: PairPhase
    a: int
    b: int
    rail: int = 0
    seconds: float = 0.0
    latency_s: float = 0.0
    stall_s: float = 0.0
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLimits:
    """What stands out. slower: so many times the usual, and never less than ``sigmas`` of the usual spread.

    stall_s: what was held up for longer. most_seconds, most_latency_s: whatever the others have (inf: no such limit).
    """

    slower: float = 1.25
    slower_latency: float = 1.5
    sigmas: float = 5.0
    stall_s: float = 0.1
    #: Differences of latency below this mean nothing.
    least_latency_s: float = 5e-6
    most_seconds: float = inf
    most_latency_s: float = inf


class Measured:
    """Rows of exchanges, as columns."""

    def __init__(self, columns: Mapping[str, npt.NDArray[np.float64]] | None = None) -> None:
        self.columns = dict(columns) if columns is not None else {name: np.empty(0) for name in _COLUMNS}

    @classmethod
    def of(cls, exchanges: Iterable[Exchange]) -> Measured:
        """The rows of these exchanges."""
        rows = [
            (e.phase, e.a, e.b, e.rail, e.seconds, e.latency_s, e.stall_s, e.failed)
            for e in exchanges
        ]  # fmt: skip
        table = np.array(rows, dtype=np.float64).reshape(-1, len(_COLUMNS))
        return cls({name: table[:, at] for at, name in enumerate(_COLUMNS)})

    def __len__(self) -> int:
        return len(self.columns["a"])

    def and_more(self, more: Measured) -> Measured:
        """These rows, and then those."""
        return Measured({name: np.concatenate((own, more.columns[name])) for name, own in self.columns.items()})

    def where(self, chosen: Bools) -> Measured:
        """The chosen rows."""
        return Measured({name: column[chosen] for name, column in self.columns.items()})

    @property
    def a(self) -> npt.NDArray[np.int64]:
        """One end of each row."""
        return self.columns["a"].astype(np.int64)

    @property
    def b(self) -> npt.NDArray[np.int64]:
        """The other end of each row."""
        return self.columns["b"].astype(np.int64)

    @property
    def rail(self) -> npt.NDArray[np.int64]:
        """The rail of each row."""
        return self.columns["rail"].astype(np.int64)

    @property
    def failed(self) -> Bools:
        """Rows without an answer."""
        return self.columns["failed"] > 0

    def of_phases(self, *phases: PairPhase) -> Bools:
        """Rows that were measured for one of these reasons."""
        return np.isin(self.columns["phase"], phases)


_COLUMNS = ("phase", "a", "b", "rail", "seconds", "latency_s", "stall_s", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandOut:
    """Per row: is it bad, in what most, and how many times the limit it is. usual: by quantity, in seconds."""

    bad: Bools
    quantity: npt.NDArray[np.int64]
    excess: npt.NDArray[np.float64]
    usual: Mapping[Quantity, float]


_ORDER = (Quantity.SECONDS, Quantity.LATENCY, Quantity.STALL, Quantity.FAILED)
#: Fewer controls than this are no measure of their own.
_LEAST_CONTROLS = 6
#: From so many rows on half of them and more are well, if two nodes are not.
_MANY = 120
#: Percentiles that are taken, and by how many times the spread each of the outer ones is apart from the middle one. Of
#: three nodes one that is slow has two pairs of three.
_OF_MANY, _OF_FEW = (25.0, 50.0, 65.0, 0.674, 0.385), (10.0, 20.0, 30.0, 0.44, 0.318)
#: A few values are alike by chance.
_LEAST_SPREAD_OF_FEW = 0.05
#: Of the logarithm: beyond it nothing could stand out.
_MOST_SPREAD = 0.5


def stand_out(measured: Measured, distance: npt.NDArray[np.int64], limits: PairLimits) -> StandOut:
    """Which rows stand out from their like. distance: a number per row; rows of the same one are compared."""
    size = len(measured)
    excess = np.zeros((len(_ORDER), size))
    usual: dict[Quantity, float] = {}
    look = measured.of_phases(PairPhase.LOOK) & ~measured.failed
    control = measured.of_phases(PairPhase.CONTROL) & ~measured.failed
    again = measured.of_phases(PairPhase.CONFIRM, PairPhase.CONTROL)
    for at, quantity in enumerate((Quantity.SECONDS, Quantity.LATENCY)):
        values = measured.columns["seconds" if quantity is Quantity.SECONDS else "latency_s"]
        factor = limits.slower if quantity is Quantity.SECONDS else limits.slower_latency
        most = limits.most_seconds if quantity is Quantity.SECONDS else limits.most_latency_s
        floor = 0.0 if quantity is Quantity.SECONDS else limits.least_latency_s
        for each in np.unique(distance):
            alike = distance == each
            base = _base(values[look & alike])
            for rows, own in ((alike & ~again, base), (alike & again, _base(values[control & alike], base))):
                if own is None:
                    continue
                if own is base:
                    usual[quantity] = min(usual.get(quantity, inf), own[0])
                limit = min(max(own[0] * max(factor, exp(limits.sigmas * own[1])), own[0] + floor), most)
                excess[at, rows] = values[rows] / limit
        if most < inf:
            excess[at] = np.maximum(excess[at], values / most)
    stalls = measured.columns["stall_s"]
    calm = float(np.percentile(stalls[look], _OF_MANY[2] if look.sum() >= _MANY else _OF_FEW[2])) if look.any() else 0.0
    usual[Quantity.STALL] = calm
    excess[2] = stalls / max(limits.stall_s, 5 * calm)
    excess[3] = np.where(measured.failed, np.inf, 0.0)
    excess[:3, measured.failed] = 0.0
    return StandOut(
        bad=excess.max(axis=0) > 1.0, quantity=excess.argmax(axis=0), excess=excess.max(axis=0), usual=usual
    )


def quantity_of(number: int) -> Quantity:
    """The quantity behind a number in ``StandOut.quantity``."""
    return _ORDER[number]


def _base(values: npt.NDArray[np.float64], otherwise: tuple[float, float] | None = None) -> tuple[float, float] | None:
    """What is usual, and the spread of its logarithm; of the better half mostly, for the others may be ill.

    otherwise: where the values are too few, and the spread in any case.
    """
    values = values[values > 0]
    if len(values) < (_LEAST_CONTROLS if otherwise is not None else 1):
        return otherwise
    # Of few rows those of one slow node are half.
    low_at, mid_at, high_at, below, above = _OF_MANY if len(values) >= _MANY else _OF_FEW
    # Of a few no value between a well one and an ill one is made up.
    method: Literal["linear", "lower"] = "linear" if len(values) >= _MANY else "lower"
    low, mid, high = np.log(np.percentile(values, (low_at, mid_at, high_at), method=method)).tolist()
    if otherwise is not None:
        return exp(mid), otherwise[1]
    least = 0.0 if len(values) >= _MANY else _LEAST_SPREAD_OF_FEW
    return exp(mid), min(max((mid - low) / below, (high - mid) / above, least), _MOST_SPREAD)
