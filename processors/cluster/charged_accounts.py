"""What the jobs' seconds were spent on, and which incident they are charged to. State: a row per job, and sums.

Intervals come as findings (docs/accounting.md). One that comes again replaces what it was, as long as it may: those
whose steps no checkpoint holds, and the newest. A job that has not been heard of for a week is folded into the sums.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...diagnosis.goodput.interval import Interval, as_body, of_body
from ...telemetry.incident_document import IncidentDocument, word_of
from ...telemetry.records import Finding
from ..operator import Table

#: Intervals that are kept although a checkpoint holds their steps: the job operator may still revise so many.
KEPT_INTERVALS = 16
#: Of one job; more causes than this, and the cheapest is told with the others.
MOST_CAUSES = 64
OTHERS = "others"
#: Jobs; looked at once a day.
MAX_ACCOUNTS = 65_536
_NS = 1_000_000_000
#: Rows of ``sums`` are named DIMENSION/NAME.
BUCKET, KIND, NODE, TENANT = "bucket", "kind", "node", "tenant"


@dataclass(slots=True, kw_only=True)
class Account:
    """One job's. ns: wall time by bucket, over its worlds; gpu_ns the same times GPUs; charged: GPU-ns by finding.

    seen: by world, how many intervals there were; begin_ns, end_ns: of the first and the newest. missing: intervals
    that never came. kept: by finding, intervals that may still be revised; whose they are stands in the finding alone.
    """

    run: str = ""
    begin_ns: int = 0
    end_ns: int = 0
    ns: dict[str, int] = field(default_factory=dict)
    gpu_ns: dict[str, int] = field(default_factory=dict)
    charged: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    kept: dict[str, Interval] = field(default_factory=dict)

    @classmethod
    def unpack(cls, row: bytes | None) -> Account:
        """The account from a row of the table; an empty one for None. Raises ValueError for an interval
        that is none.
        """
        if not row:
            return cls()
        fields = json.loads(row)
        kept = {key: of_body(body, run="", job="", attempt="") for key, body in fields.pop("kept", {}).items()}
        return cls(**fields, kept=kept)

    def pack(self) -> bytes:
        """The account as a row of the table, for ``unpack``."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["kept"] = {key: as_body(interval) for key, interval in self.kept.items()}
        return json.dumps(fields, separators=(",", ":")).encode()

    def take(self, finding: Finding) -> set[str]:
        """Adds the interval of a finding, or replaces it where it came before; returns the causes whose charge changes.

        One that may not change any more is passed over. Raises ValueError for what is no interval.
        """
        who = finding.identity
        interval = of_body(finding.body["interval"], run=who.run, job=who.job, attempt=who.attempt)
        world, before = str(interval.world), self.kept.get(finding.key)
        if before is None and interval.number < self.seen.get(world, 0):
            return set()  # told again, of what may not change any more
        changed: set[str] = set()
        if before is not None:
            changed |= self._add(before, -1)
        else:
            self.missing += interval.number - self.seen.get(world, 0)
            self.seen[world] = interval.number + 1
        changed |= self._add(interval, 1)
        self.run = self.run or who.run
        self.begin_ns = min(self.begin_ns or interval.begin_ns, interval.begin_ns)
        self.end_ns = max(self.end_ns, interval.end_ns)
        self.kept[finding.key] = interval
        self._forget(interval)
        return changed

    def of_causes(self, keys: Iterable[str]) -> int:
        """GPU-nanoseconds charged to these findings."""
        return sum(self.charged.get(key, 0) for key in keys)

    def _add(self, interval: Interval, sign: int) -> set[str]:
        changed = set()
        for part in interval.parts:
            name, gpu_ns = part.bucket.value, sign * part.ns * interval.gpus
            self.ns[name] = self.ns.get(name, 0) + sign * part.ns
            self.gpu_ns[name] = self.gpu_ns.get(name, 0) + gpu_ns
            if part.cause:
                cause = part.cause if part.cause in self.charged or len(self.charged) < MOST_CAUSES else OTHERS
                self.charged[cause] = self.charged.get(cause, 0) + gpu_ns
                changed.add(cause)
        return changed

    def _forget(self, newest: Interval) -> None:
        """Intervals that are final by now."""
        mine = [key for key, interval in self.kept.items() if interval.world == newest.world]
        for key in mine[: max(0, len(mine) - KEPT_INTERVALS)]:
            if self.kept[key].last_step < newest.saved_step:
                del self.kept[key]


class Accounts:
    """The tables of one cluster. accounts: by job; sums: of what was folded, GPU-nanoseconds by DIMENSION/NAME."""

    def __init__(self, accounts: Table, sums: Table) -> None:
        self._accounts, self._sums = accounts, sums

    def take(self, finding: Finding) -> tuple[Account, set[str]]:
        """Writes the job's account with this interval in it; returns it and the causes whose charge has changed.

        Raises ValueError for what is no interval.
        """
        account = self.of(finding.identity.job)
        changed = account.take(finding)
        self._accounts.put(finding.identity.job, account.pack())
        return account, changed

    def of(self, job: str) -> Account:
        """A job's account; an empty one where nothing was told."""
        return Account.unpack(self._accounts.get(job))

    def to_fold(self, time_ns: int) -> list[str]:
        """Jobs whose newest interval ended before ``time_ns`` (Unix), and of too many the first heard of."""
        ends = sorted((Account.unpack(row).end_ns, job) for job, row in self._accounts.rows())
        surplus = max(0, len(ends) - MAX_ACCOUNTS)
        return [job for place, (end_ns, job) in enumerate(ends) if end_ns < time_ns or place < surplus]

    def are_there(self) -> bool:
        """Whether any job has an account."""
        return next(self._accounts.rows(), None) is not None

    def fold_job(self, job: str, documents: Iterable[IncidentDocument]) -> None:
        """Adds a job's account to the sums and deletes it. documents: last revisions of its incidents."""
        row = self._accounts.get(job)
        for name, gpu_ns in sums_of(Account.unpack(row), documents).items():
            self._sums.put(name, b"%d" % (int(self._sums.get(name) or 0) + gpu_ns))
        if row is not None:
            self._accounts.delete(job)

    def totals(self, documents: Mapping[str, Iterable[IncidentDocument]]) -> dict[str, int]:
        """GPU-nanoseconds by DIMENSION/NAME of all jobs there have been. documents: last revisions of incidents, by
        job.
        """
        totals = {name: int(row) for name, row in self._sums.rows()}
        # A job that leads a joint incident may have told nothing of its own seconds.
        accounts = {**dict.fromkeys(documents), **dict(self._accounts.rows())}
        for job, row in accounts.items():
            for name, gpu_ns in sums_of(Account.unpack(row), documents.get(job, ())).items():
                totals[name] = totals.get(name, 0) + gpu_ns
        return totals


def sums_of(account: Account, documents: Iterable[IncidentDocument]) -> dict[str, int]:
    """GPU-nanoseconds by DIMENSION/NAME: by bucket, and what incidents have cost by kind, node and tenant.

    documents: last revisions of the job's incidents. What several jobs have lost to one cause is counted where its
    leader is, with the leader's kind, node and tenant.
    """
    sums = {f"{BUCKET}/{name}": gpu_ns for name, gpu_ns in account.gpu_ns.items()}
    for document in documents:
        cost = document.cost
        if cost is None or not cost.gpu_seconds or document.merged_into or cost.charged_to:
            continue
        node = document.suspects[0].node if document.suspects else None
        dimensions = ((KIND, word_of(document.kind)), (NODE, node), (TENANT, document.job.owner))
        for dimension, name in dimensions:
            place = f"{dimension}/{name or 'unknown'}"
            sums[place] = sums.get(place, 0) + round(cost.gpu_seconds * _NS)
    return sums


def told_accounts(rows: Iterable[tuple[str, bytes]], since_ns: int) -> Iterator[tuple[str, Account]]:
    """Job and account of jobs heard of since ``since_ns`` (Unix), from rows of the table ``accounts``."""
    for job, row in rows:
        account = Account.unpack(row)
        if account.end_ns >= since_ns:
            yield job, account
