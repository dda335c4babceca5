"""Whose job it is: jobs of one id and several owners are several jobs to the judge, and people read the id alone.

Inside the judge an owner's job has a key in place of its id, so that no operator has to think of owners. Who is heard
first keeps the id itself as its key: captures and state that know no owners go on under it. Where two owners claim one
id, people read ``4711@1234``, but for the owner whom the kernel or the scheduler confirms. Part of the input's order
alone, so a replay agrees. One table of rows; bounded per owner, so that nobody can make another one's be forgotten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..telemetry.otlp_encode import remember
from ..telemetry.records import Block, Event, Finding, Flush, Identity, Incident, Payload
from ..telemetry.trust import IdBy
from ..telemetry.vocabulary import EventName
from .fair_share import FairShare
from .operator import Table

Emitted = Block | Event | Finding | Incident
#: In a key, around id and owner: what is printable holds none.
_MARK = "\x1f"
_KEY = re.compile(f"{_MARK}([^{_MARK}]*){_MARK}([^{_MARK}]*){_MARK}")
#: Fields of ours in which jobs are named in words, and how.
_SENTENCES = frozenset({"shows", "source", "because", "who", "looks_guilty"})
_JOB_IN_SENTENCE = re.compile(rf"\bjob ([^\s{_MARK}]*[^\s{_MARK}.,:;!?)\]'\"])")
_KEY_IN_JSON = re.compile(rb"\\u001f((?:[^\\]|\\(?!u001f))*)\\u001f((?:[^\\]|\\(?!u001f))*)\\u001f")
#: Ids that one owner has; his oldest is forgotten first.
MAX_IDS_PER_OWNER = 1024
#: Of all owners together. Beyond that the oldest id of the owner who has most goes.
MAX_IDS = 131_072
#: Owners of one id whose claims are remembered.
MAX_OWNERS_PER_ID = 16
MAX_CACHED = 4096
_SURE = (IdBy.KERNEL.value, IdBy.SCHEDULER.value)
#: What says more comes later.
_ORDER = ("", IdBy.NAMED.value, IdBy.CLAIMED.value, *_SURE)


@dataclass(slots=True)
class _Claims:
    """Of one id. plain: the owner whose key is the id. by: per owner, who says that the id is his."""

    plain: str
    by: dict[str, str] = field(default_factory=dict)

    @property
    def confirmed(self) -> list[str]:
        return [owner for owner, by in self.by.items() if by in _SURE]


class JobOwners:
    """Keys and names of jobs and runs, over one table. Not thread-safe."""

    def __init__(self, table: Table, report: Callable[[str], None] | None = None) -> None:
        """report: takes one line where rows cannot be read; they are left out."""
        self._table = table
        self._claims: dict[str, _Claims] = {}
        self._ids = FairShare()  # of each claim its id and owner, the oldest first
        self._keyed: dict[Identity, Identity] = {}
        #: Whether any id has had several owners: else no key differs from its id.
        self._is_contested = False
        for name, row in table.rows():
            try:
                claims = _read_claims(row)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                table.delete(name)
                if report is not None:
                    why = f"{type(error).__name__}: {error}"[:100]
                    report(f"state, table owners, row {name[:100]!r}: {why}; whose that id is will be heard again")
                    report = None
                continue
            self._claims[name] = claims
            self._is_contested |= len(claims.by) > 1 or claims.plain not in claims.by
            for owner in claims.by:
                self._ids.touch(_claim(name, owner), owner)

    # --- in -----------------------------------------------------------------------------------------------------------
    def keyed(self, payload: Payload) -> Payload:
        """The payload under its job's key, as operators get it; remembers whose the job is, and who says so."""
        if isinstance(payload, Incident):
            return Incident(document=self._keyed_document(payload.document))
        if not isinstance(payload, Block | Flush | Event | Finding) or not (
            payload.identity.job or payload.identity.run
        ):
            if isinstance(payload, Event) and payload.name is EventName.SCHEDULER:
                self._hear_scheduler(payload)
            return payload
        identity = payload.identity
        if isinstance(payload, Event):
            if payload.name is EventName.SCHEDULER:
                self._hear_scheduler(payload)
            elif payload.name is EventName.RANK_STARTED and identity.owner:
                self._hear(identity.job, identity.owner, str(payload.attributes.get("id_by") or ""))
            elif (claim := _claim(identity.job, identity.owner)) in self._ids:
                self._ids.touch(claim, identity.owner)  # of whom something is heard is not forgotten first
        known = self._keyed.get(identity)
        if known is None:
            known = self._keyed_identity(identity)
            if identity.owner:  # whose the others' are may change
                remember(self._keyed, identity, known)
        return payload if known is identity or known == identity else replace(payload, identity=known)

    def _keyed_identity(self, identity: Identity) -> Identity:
        """The same object where nothing changes: it is asked of each block of a job that has no owner."""
        owner = identity.owner.replace(_MARK, "")
        job = self._key(identity.job.replace(_MARK, ""), owner)
        run = job if identity.run == identity.job else self._key(identity.run.replace(_MARK, ""), owner)
        return identity if (job, run) == (identity.job, identity.run) else replace(identity, job=job, run=run)

    def _key(self, name: str, owner: str) -> str:
        """A run is kept apart like a job: by its failures it is said what to do."""
        if not name:
            return name
        if not owner:
            claims = self._claims.get(name)
            if claims is None or len(claims.confirmed) != 1:
                return name
            owner = claims.confirmed[0]
        claims = self._hear(name, owner, "")
        if owner == claims.plain:
            return name
        self._is_contested = True
        return f"{_MARK}{name}{_MARK}{owner}{_MARK}"

    def _hear(self, name: str, owner: str, by: str) -> _Claims:
        claims = self._claims.get(name)
        if claims is None:
            claims = self._claims[name] = _Claims(plain=owner)
        before = claims.by.get(owner)
        if before is None and len(claims.by) >= MAX_OWNERS_PER_ID and by not in _SURE:
            return claims
        if before is None or _ORDER.index(_word(by)) > _ORDER.index(before):
            claims.by[owner] = _word(by)
            self._put(name, claims)
            self._keep_few(owner, name)
        return claims

    def _hear_scheduler(self, event: Event) -> None:
        """Slurm says whose a job is that a rank claims."""
        said = event.attributes
        if said.get("what") == "owner" and said.get("job") and isinstance(said.get("owner_uid"), int):
            self._hear(str(said["job"]), str(said["owner_uid"]), IdBy.SCHEDULER.value)

    def _keep_few(self, owner: str, name: str) -> None:
        self._ids.touch(_claim(name, owner), owner)
        while self._ids.count_of(owner) > MAX_IDS_PER_OWNER:
            self._forget(self._ids.idlest_of(owner))
        while len(self._ids) > MAX_IDS:
            self._forget(self._ids.first_to_go())

    def _forget(self, claim: str) -> None:
        owner = self._ids.owner_of(claim)
        name = claim.removesuffix(_MARK + owner)
        self._ids.remove(claim)
        self._keyed.clear()  # whose key the plain id is may be another one's from now on
        claims = self._claims.get(name)
        if claims is None:
            return
        claims.by.pop(owner, None)
        if claims.by:
            self._put(name, claims)
        else:
            del self._claims[name]
            self._table.delete(name)

    def _put(self, name: str, claims: _Claims) -> None:
        self._table.put(name, _write_claims(claims))

    # --- between runners that share the work --------------------------------------------------------------------------
    def claims_of(self, identity: Identity) -> dict[str, str]:
        """By id what is known of whose it is, for the job and run of an identity with keys: as ``learn`` takes it."""
        ids = {self._parts(key)[0] for key in (identity.job, identity.run) if key}
        return {name: _write_claims(self._claims[name]).decode() for name in ids if name in self._claims}

    def learn(self, claims: Mapping[str, str]) -> None:
        """Takes what another runner has heard, in place of what was known of these ids.

        Raises ValueError, KeyError, TypeError or AttributeError for what ``claims_of`` never gives.
        """
        for name, row in claims.items():
            known = _read_claims(row.encode())
            if self._claims.get(name) == known:
                continue
            self._claims[name] = known
            self._is_contested |= len(known.by) > 1 or known.plain not in known.by
            self._keyed.clear()
            self._put(name, known)
            for owner in list(known.by):
                self._keep_few(owner, name)

    def _keyed_document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """An incident that was published, back under its job's key."""
        job = document.get("job")
        owner = job.get("owner_id") if isinstance(job, Mapping) else None
        if not isinstance(job, Mapping) or not isinstance(owner, str) or not owner:
            return dict(document)
        shown = {name: str(job.get(name) or "").removesuffix(f"@{owner}") for name in ("id", "run")}
        self._hear(shown["id"], owner, str(job.get("id_by") or ""))
        return {**document, "job": {**job, **{name: self._key(text, owner) for name, text in shown.items()}}}

    def owner_of(self, key: str) -> str:
        """Who owns the job of this key; "" where nobody has said it."""
        return self._parts(key)[1]

    # --- out ----------------------------------------------------------------------------------------------------------
    def shown(self, payload: Emitted) -> Emitted:
        """What an operator has emitted, as others read it: ids as people know them, and whose they are."""
        if isinstance(payload, Incident):
            return Incident(document=self._shown_document(payload.document))
        if isinstance(payload, Finding):
            identity, body, key = self._named(payload.identity), payload.body, payload.key
            if self._is_contested:
                body, key = self._shown_value(body), self._shown_text(key)
            return payload if body is payload.body and identity is payload.identity else replace(
                payload, identity=identity, body=body, key=key
            )  # fmt: skip
        job, owner = self._parts(payload.identity.job)
        if not owner:
            return payload
        run, _ = self._parts(payload.identity.run)  # agents know the job by its own id
        return replace(payload, identity=replace(payload.identity, job=job, run=run, owner=owner))

    def named(self, payload: Payload) -> Payload:
        """A record that has come, for those who show it: with the job's name in place of its id."""
        if not isinstance(payload, Block | Flush | Event) or not payload.identity.owner:
            return payload
        name = self._name(payload.identity.job, payload.identity.owner)
        return payload if name == payload.identity.job else replace(
            payload, identity=replace(payload.identity, job=name)
        )  # fmt: skip

    def shown_row(self, row: bytes) -> bytes:
        """A row of an operator's state that is JSON, with ids as people know them."""
        if b"\\u001f" not in row:
            return row
        return _KEY_IN_JSON.sub(lambda key: self._name(key[1].decode(), key[2].decode()).encode(), row)

    def _parts(self, key: str) -> tuple[str, str]:
        match = _KEY.fullmatch(key)
        if match is not None:
            return match[1], match[2]
        claims = self._claims.get(key)
        return key, claims.plain if claims is not None and claims.by else ""

    def _named(self, identity: Identity) -> Identity:
        job, owner = self._parts(identity.job)
        run, of_run = self._parts(identity.run)
        if not owner and not of_run:
            return identity
        return replace(identity, job=self._name(job, owner), run=self._name(run, of_run), owner=owner)

    def _name(self, job: str, owner: str) -> str:
        """The id, where it is clear whose it is; else with the owner."""
        claims = self._claims.get(job)
        if not owner or claims is None or len(claims.by) < 2 or claims.by.get(owner) in _SURE:
            return job
        return f"{job}@{owner}"

    def _shown_text(self, text: str) -> str:
        return _KEY.sub(lambda key: self._name(key[1], key[2]), text) if _MARK in text else text

    def _shown_sentence(self, text: str) -> str:
        """A sentence of ours names a job by its key: of who was heard first that is the plain id."""
        return self._shown_text(_JOB_IN_SENTENCE.sub(self._named_in, text) if "job " in text else text)

    def _named_in(self, found: re.Match[str]) -> str:
        job = found[1]
        claims = self._claims.get(job)
        return f"job {self._name(job, claims.plain)}" if claims is not None else found[0]

    def _shown_value(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str):
            return self._shown_sentence(value) if name in _SENTENCES else self._shown_text(value)
        if isinstance(value, Mapping):
            return {self._shown_text(str(name)): self._shown_value(each, str(name)) for name, each in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._shown_value(each) for each in value]
        return value

    def _shown_document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        job = document.get("job")
        key = str(job.get("id") or "") if isinstance(job, Mapping) else ""
        name, owner = self._parts(key)
        told = dict(document)
        if owner and isinstance(job, Mapping):
            by = self._claims[name].by.get(owner, "") if name in self._claims else ""
            run, of_run = self._parts(str(job.get("run") or ""))
            told["job"] = {
                **job,
                "id": self._name(name, owner),
                "run": self._name(run, of_run) if job.get("run") is not None else None,
                "owner_id": owner,
                **({"id_by": by} if by else {}),
            }
            shares = told.get("jobs")
            if isinstance(shares, Sequence):
                told["jobs"] = [
                    {**share, "id": self._name(*self._parts(str(share.get("id") or "")))}
                    if isinstance(share, Mapping) and share.get("id") is not None else share
                    for share in shares
                ]  # fmt: skip
        return {name: self._shown_value(value) for name, value in told.items()} if self._is_contested else told


def _write_claims(claims: _Claims) -> bytes:
    return json.dumps({"plain": claims.plain, "by": claims.by}).encode()


def _read_claims(row: bytes) -> _Claims:
    known = json.loads(row)
    return _Claims(plain=str(known["plain"]), by={str(owner): _word(by) for owner, by in known["by"].items()})


def _word(by: object) -> str:
    """Who says it; "" for a word of another release, or damage."""
    return by if isinstance(by, str) and by in _ORDER else ""


def _claim(name: str, owner: str) -> str:
    return f"{name}{_MARK}{owner}"
