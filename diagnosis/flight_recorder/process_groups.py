"""Which process groups a job has, who is in each, and how far each member got. Pure.

A group is its name and its members: the same name may stand for several groups (``split_group``), and which number
(``pg_id``) a rank gives a group is that rank's own affair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from .rank_dump import DumpEntry, GroupCounters, RankDump

#: What torch calls the group of all ranks, and a group that was given no description.
WORLD_DESCRIPTION = "default_pg"
UNDEFINED = "undefined"


@dataclass(frozen=True, slots=True)
class GroupKey:
    name: str
    members: tuple[int, ...]


@dataclass(slots=True)
class MemberView:
    """What one member's dump says of one group. collectives and pairs: in the order of the calls.

    status: the member's own counters for the group, None where they could not be told apart.
    is_wrapped: earlier entries of the group may be gone.
    """

    collectives: list[DumpEntry] = field(default_factory=list)
    pairs: list[DumpEntry] = field(default_factory=list)
    status: GroupCounters | None = None
    is_wrapped: bool = False


@dataclass(slots=True)
class ProcessGroup:
    """``views``: of the members whose dump is there."""

    key: GroupKey
    description: str
    views: dict[int, MemberView]

    @property
    def name(self) -> str:
        """The group's name as torch has it, which need not be unique."""
        return self.key.name

    @property
    def members(self) -> tuple[int, ...]:
        """Global ranks, in the order of their ranks in the group."""
        return self.key.members

    @property
    def label(self) -> str:
        """What a person would call the group: its description with its name, or the name alone."""
        described = self.description if self.description not in ("", UNDEFINED) else ""
        return (
            f"{described} ({self.name})" if described and described != self.name else described or f"group {self.name}"
        )

    @property
    def silent(self) -> tuple[int, ...]:
        """Members of whom there is no dump."""
        return tuple(rank for rank in self.members if rank not in self.views)


def process_groups(dumps: Mapping[int, RankDump]) -> dict[GroupKey, ProcessGroup]:
    """Every group, with its members' views, in which somebody with a dump has called something or is a member."""
    names = _GroupNames(dumps)
    groups: dict[GroupKey, ProcessGroup] = {}

    def group_at(key: GroupKey, description: str) -> ProcessGroup:
        found = groups.get(key)
        if found is None:
            found = groups[key] = ProcessGroup(key, description, {})
        elif found.description in ("", UNDEFINED):
            found.description = description
        return found

    for rank, dump in dumps.items():
        for name, config in dump.groups.items():
            key = names.key_of_name(rank, name)
            if key is not None:
                group_at(key, config.description).views[rank] = MemberView(is_wrapped=dump.is_wrapped)
        for entry in dump.entries:
            group = group_at(names.key_of(rank, entry), entry.description)
            view = group.views.setdefault(rank, MemberView(is_wrapped=dump.is_wrapped))
            (view.pairs if entry.is_p2p else view.collectives).append(entry)
    for rank, dump in dumps.items():
        for pg_id, name in _names_of_ids(rank, dump).items():
            key = names.key_of_name(rank, name)
            if key is not None and key in groups and rank in groups[key].views:
                groups[key].views[rank].status = dump.status.get(pg_id)
    for group in groups.values():
        # A member that has nothing in its ring of a group that others use is a member all the same.
        for rank in group.members:
            if rank in dumps:
                group.views.setdefault(rank, MemberView(is_wrapped=dumps[rank].is_wrapped))
    return groups


class _GroupNames:
    """(rank, name) -> group. Where a dump does not list the members, those who use the name are."""

    def __init__(self, dumps: Mapping[int, RankDump]) -> None:
        self._keys: dict[tuple[int, str], GroupKey] = {}
        listed: dict[str, list[GroupKey]] = defaultdict(list)
        users: dict[str, set[int]] = defaultdict(set)
        for rank, dump in dumps.items():
            for name, config in dump.groups.items():
                if rank in config.ranks:
                    key = next((one for one in listed[name] if one.members == config.ranks), None)
                    if key is None:
                        listed[name].append(key := GroupKey(name, config.ranks))
                    self._keys[rank, name] = key
        for rank, dump in dumps.items():
            for entry in dump.entries:
                if (rank, entry.group) not in self._keys:
                    users[entry.group].add(rank)
                    if entry.description == WORLD_DESCRIPTION:
                        users[entry.group].update(range(max(dumps) + 1))
        for name, ranks in users.items():
            inferred = GroupKey(name, tuple(sorted(ranks)))
            for rank in ranks:
                if (rank, name) not in self._keys:
                    self._keys[rank, name] = next((one for one in listed[name] if rank in one.members), inferred)

    def key_of(self, rank: int, entry: DumpEntry) -> GroupKey:
        return self._keys[rank, entry.group]

    def key_of_name(self, rank: int, name: str) -> GroupKey | None:
        return self._keys.get((rank, name))


def _names_of_ids(rank: int, dump: RankDump) -> dict[int, str]:
    """pg_id -> name of the groups that the rank's counters are of.

    Its entries say it. Where it has none (all that it called has ended), ids and names are both given in the order in
    which groups are made, so they go together if there are as many of the one as of the other.
    """
    known = {entry.pg_id: entry.group for entry in dump.entries}
    ids = sorted(dump.status)
    mine = [name for name, config in dump.groups.items() if rank in config.ranks]
    if len(ids) == len(mine) and all(name.isascii() and name.isdigit() and len(name) < 10 for name in mine):
        ordered = dict(zip(ids, sorted(mine, key=int), strict=True))
        if all(ordered.get(pg_id) == name for pg_id, name in known.items()):
            return ordered
    return known


def world_size(dumps: Mapping[int, RankDump], groups: Mapping[GroupKey, ProcessGroup]) -> int:
    """The number of the job's ranks, as far as the dumps tell: one more than the highest rank in them."""
    highest = max((key.members[-1] for key in groups if key.members), default=-1)
    return max(highest, max(dumps, default=-1)) + 1


def uses_pairs(group: ProcessGroup) -> bool:
    """Whether anybody sends or receives in the group: then a member's counter may be of either kind."""
    return any(view.pairs for view in group.views.values())
