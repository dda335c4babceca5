"""The process groups of a job: who is in them, and the newest word of each member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from ....telemetry.packed_flush import is_reference, list_referred, uid_of_list
from ....telemetry.records import Group
from ....telemetry.ring_layout import parse_ranks
from ....telemetry.tables import GROUP_PROGRESS, NO_GROUP
from ....telemetry.vocabulary import is_device_backend
from ..columns.rows import Growing
from ..detectors.slow.smallest_group_waits import inner_groups
from ..detectors.slow.wait_attribution import GroupShape, Places
from .rank_state import MOST_RANKS, RankFacts
from .unsaved import Unsaved

#: Different lists of groups that are remembered as they came, and by their uids: some of each node of the largest jobs.
MOST_LOOKUPS = 65_536
#: Of one job, as indexes of rows may be.
MOST_GROUPS = 32_768
#: A member takes 120 bytes, whoever names it: so many of one group, and of all together, count in any case (the groups
#: of the first node of 16,384 ranks), and beyond that so many for each rank that was heard.
ALWAYS_IN_ONE, ALWAYS_MEMBERS, MEMBERS_FOR_EACH_HEARD = 16_384, 65_536, 64
_NEVER_NS = np.iinfo(np.int64).max
#: What maps groups of a list that is not known.
_NO_LIST = np.array([NO_GROUP], np.uint16)
_List = TypeVar("_List")


class JobGroups:
    """known, members, on_device (whether a device does its operations), first: by group, in the order of their coming.

    rows, stamps: newest GROUP_PROGRESS row of every member of every group, in the order of ``members``, and when it
    came, 0 never; group g's begin at first[g]. open_ages_ns: of these rows (``note_ages``), asked of every message.
    tells_ends: by group, whether any member's end of a call was ever told. device_gaps: by device group, the longest
    time without an end, in ns.
    """

    def __init__(self, unsaved: Unsaved, heard: Callable[[], int]) -> None:
        """heard: says how many ranks of the job were heard."""
        self._unsaved, self._heard = unsaved, heard
        self.known: list[Group] = []
        self.members: list[np.ndarray] = []
        self.on_device: list[bool] = []
        self.first: list[int] = []
        self._index: dict[str, int] = {}
        self._lookups: dict[int, tuple[tuple[Group, ...], np.ndarray]] = {}
        self._lists: dict[str, np.ndarray] = {}
        self._open_lists: dict[str, tuple[str, ...]] = {}  # with groups that are not known yet
        self._first_of_group = np.zeros(0, np.int64)
        self._of_members = (Growing(GROUP_PROGRESS), Growing(np.int64), Growing(np.int64))
        self.rows, self.stamps, self.open_ages_ns = (each.filled for each in self._of_members)
        self._tells_ends = Growing(bool)
        self.tells_ends = self._tells_ends.filled
        self.device_gaps: dict[int, int] = {}
        self._device_gaps_ns: np.ndarray | None = None
        self._on_device = np.zeros(0, bool)
        self._shape: GroupShape | None = None
        self._inner: tuple[tuple[int, int, int], np.ndarray] | None = None
        self._places = Places.of(())
        self._of_rows: tuple[np.ndarray, np.ndarray, int] | None = None

    def add(self, group: Group, *, was_kept: bool = False) -> int:
        """The job's index of the group; one whose uid is not known is added first, without members if its ranks are
        malformed. NO_GROUP, and not added, where only its uid is told (``packed_flush``), where the job cannot have
        such a group as far as its ranks were heard, or has too many. was_kept: it is read from the job's rows.
        """
        index = self._index.get(group.uid)
        if index is not None:
            return index
        index = len(self.known)
        count = _count_ranks(group.ranks)
        if not was_kept and (is_reference(group) or index >= MOST_GROUPS or not self._may_have(count)):
            return NO_GROUP
        members = parse_ranks(group.ranks) if count else []
        self.known.append(group)
        self.members.append(np.array(members, np.int64))
        self.on_device.append(is_device_backend(group.backend))
        self.first.append(self.rows.size)
        self.rows, self.stamps, self.open_ages_ns = (each.grow(len(members)) for each in self._of_members)
        self.tells_ends = self._tells_ends.grow(1)
        self._index[group.uid] = index
        self._shape = None
        self._unsaved.facts = True
        return index

    def _may_have(self, members: int) -> bool:
        more = MEMBERS_FOR_EACH_HEARD * self._heard()
        return members <= max(ALWAYS_IN_ONE, more) and self.rows.size + members <= ALWAYS_MEMBERS + more

    def index_of(self, uid: str) -> int | None:
        """The job's index of the group with that uid; None: not known."""
        return self._index.get(uid)

    def name_of(self, index: int) -> str:
        """The group's label, as people call it; "?" for an index that is not known."""
        if not 0 <= index < len(self.known):
            return "?"
        return self.known[index].label

    def lookup(self, groups: tuple[Group, ...]) -> np.ndarray:
        """An array that maps a block's own group indices to the job's, and len(groups) to NO_GROUP. Unknown groups are
        added.
        """
        # Decoding gives equal lists of groups as one object: comparing them would cost more than all else here.
        found = self._lookups.get(id(groups))
        if found is not None and found[0] is groups:
            return found[1]
        if groups and not groups[0].name and (uid := list_referred(groups)):
            lookup = self._lists.get(uid, _NO_LIST)
            if uid in self._open_lists:
                lookup = self._take_list(uid, self._open_lists[uid])
        elif len(groups) > 1:
            for group in groups:
                self.add(group)
            uids = tuple([group.uid for group in groups])
            lookup = self._take_list(uid_of_list(groups), uids)
        else:
            lookup = np.array([*[self.add(group) for group in groups], NO_GROUP], np.uint16)
        if len(self._lookups) >= MOST_LOOKUPS:
            self._lookups.clear()
        if lookup is not _NO_LIST and NO_GROUP not in lookup[:-1]:  # else it is asked again: more may be known by then
            self._lookups[id(groups)] = (groups, lookup)
        return lookup

    # --- lists that messages refer to ---------------------------------------------------------------------------------
    def _take_list(self, uid: str, uids: tuple[str, ...]) -> np.ndarray:
        """As ``lookup``, of the groups with ``uids``; remembers them by the list's uid (``uid_of_list``)."""
        lookup = np.array([*[self._index.get(group, NO_GROUP) for group in uids], NO_GROUP], np.uint16)
        self._open_lists.pop(uid, None)
        if NO_GROUP in lookup[:-1]:
            _put_bounded(self._open_lists, uid, uids)
        elif uid not in self._lists:
            _put_bounded(self._lists, uid, lookup)
            self._unsaved.lists = True
        return lookup

    def lists(self) -> dict[str, np.ndarray]:
        """All lists of known groups as arrays, for ``put_back_lists``."""
        sizes = [lookup.size for lookup in self._lists.values()]
        uids = np.array([int(uid, 16) for uid in self._lists], np.uint64)
        return {"uids": uids, "sizes": np.array(sizes, np.uint32), "groups": _joined(list(self._lists.values()))}

    def put_back_lists(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Remembers what ``lists`` gave: of each list (n,) its uid and size, and the indices of groups of all of them.

        Raises KeyError or ValueError for what it did not give.
        """
        ends = np.cumsum(arrays["sizes"], dtype=np.int64).tolist()
        begin = 0
        for uid, end in zip(arrays["uids"].tolist(), ends, strict=True):
            self._lists[f"{uid:016x}"] = arrays["groups"][begin:end]
            begin = end

    # --- members' rows ------------------------------------------------------------------------------------------------
    def places_of(self, groups: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By row (n,), its group as an index, and where the row of that member is kept; -1 of who is no member.

        groups: numbers of the job's groups, or NO_GROUP; ranks: (n,).
        """
        indices = groups.astype(np.intp)
        places = self.places().find(indices, ranks)
        if len(self._first_of_group) != len(self.first):
            self._first_of_group = np.array(self.first, np.int64)
        known = places >= 0
        if np.logical_and.reduce(known):
            return indices, places + self._first_of_group[indices]
        first = np.zeros(indices.size, np.int64)
        first[known] = self._first_of_group[indices[known]]
        return indices, places + first

    def places(self) -> Places:
        """Places of ranks within all known groups, brought up to date."""
        if self._places.groups < len(self.members):
            self._places = self._places.with_more(self.members[self._places.groups :])
        return self._places

    def rows_of(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Newest GROUP_PROGRESS rows of a group's members, and the stamps at which they came (0 never), as views."""
        first = self.first[index]
        last = first + self.members[index].size
        return self.rows[first:last], self.stamps[first:last]

    def all_members(self) -> np.ndarray:
        """Ranks of all members of all groups, in the order of ``rows``."""
        return self._flat()[0]

    def group_of_members(self) -> np.ndarray:
        """By member, in the order of ``rows``, its group as an index."""
        return self._flat()[1]

    def _flat(self) -> tuple[np.ndarray, np.ndarray]:
        if self._of_rows is None or self._of_rows[2] != len(self.members):
            sizes = [members.size for members in self.members]
            ranks = np.concatenate(self.members) if sizes else np.zeros(0, np.int64)
            self._of_rows = ranks, np.arange(len(sizes)).repeat(sizes), len(sizes)
        return self._of_rows[0], self._of_rows[1]

    def note_ages(self, place: np.ndarray | slice, rows: np.ndarray) -> None:
        """Keeps for how long each of these members has had an operation open. place: of the rows; rows:
        GROUP_PROGRESS.
        """
        still = rows["open"]
        self.open_ages_ns[place] = np.where(still < 0, rows["moved_age_ns"], rows["open_age_ns"] * (still > 0))

    def note_ends(self, groups: np.ndarray, rows: np.ndarray) -> None:
        """Marks in ``tells_ends`` the groups in which some row has a completed call: their agents see calls end.

        groups: (n,), index of each row's group; rows: (n,) of GROUP_PROGRESS.
        """
        self.tells_ends[groups[rows["completed"] > 0]] = True

    def blind(self, ranks: set[int]) -> set[tuple[int, int]]:
        """(group, rank) pairs that must neither vote nor be missed: of ``ranks``, and those whose rows say that they
        are blind.

        ranks: those of whom nothing is seen.
        """
        pairs = {(group, rank) for rank in ranks for group in range(len(self.known))}
        if self.rows["blind"].any():
            for index, members in enumerate(self.members):
                rows, _ = self.rows_of(index)
                pairs |= {(index, int(rank)) for rank in members[rows["blind"] != 0]}
        return pairs

    # --- on devices ---------------------------------------------------------------------------------------------------
    def are_on_device(self) -> np.ndarray:
        """By group, whether a device does its operations."""
        if self._on_device.size != len(self.on_device):
            self._on_device = np.array(self.on_device, bool)
        return self._on_device

    def device_gaps_ns(self) -> np.ndarray:
        """By group, the longest time in ns that a device needed to end an operation; of host groups the largest number
        there is.
        """
        if self._device_gaps_ns is None or self._device_gaps_ns.size != len(self.known):
            gaps_ns = np.where(self.are_on_device(), 0, _NEVER_NS)
            gaps_ns[list(self.device_gaps)] = list(self.device_gaps.values())
            self._device_gaps_ns = gaps_ns
        return self._device_gaps_ns

    def forget_device_gaps(self) -> None:
        """Forgets the longest gaps of all device groups."""
        self.device_gaps = {}
        self._device_gaps_ns = None

    def note_device_gap(self, group: int, gap_ns: int) -> None:
        """Sets the group's longest gap to ``gap_ns``, whatever it was."""
        self.device_gaps[group] = gap_ns
        if self._device_gaps_ns is not None and group < self._device_gaps_ns.size:
            self._device_gaps_ns[group] = gap_ns
        self._unsaved.steps = True

    def inner_groups(self, ranks: np.ndarray) -> np.ndarray:
        """By rank (n,), the smallest group on devices in which it does something together with others; -1: none."""
        joins = self._joins()
        key = len(self.known), ranks.size, int(joins.sum())
        if self._inner is None or self._inner[0] != key:
            self._inner = key, inner_groups(self.members, joins, ranks)
        return self._inner[1]

    def _joins(self) -> np.ndarray:
        """By group: whether it is on devices, and not one whose ranks only send to one another."""
        called, sent = np.zeros((2, len(self.members)), bool)
        called[self.rows["group"][self.rows["enqueued"] > 0]] = True
        sent[self.rows["group"][self.rows["p2p_enqueued"] > 0]] = True
        return np.asarray(self.on_device, bool) & (called | ~sent)

    # --- shape --------------------------------------------------------------------------------------------------------
    def shape(self, ranks: Mapping[int, RankFacts]) -> GroupShape:
        """Sizes and clocks of all groups, for the wait arithmetic; rebuilt when a group or a rank's node is new."""
        if self._shape is None:
            sizes = np.array([members.size for members in self.members] or [0], np.int64)
            one_clock = self._one_clock(sizes, ranks)
            self._shape = GroupShape(sizes=sizes, one_clock=one_clock, places=self.places())
        return self._shape

    def forget_shape(self) -> None:
        """To be called when a rank, or the node of one, is new: ``shape`` is made anew at its next call."""
        self._shape = None

    def _one_clock(self, sizes: np.ndarray, ranks: Mapping[int, RankFacts]) -> np.ndarray:
        """By group: whether all its members are on one node; those that were never heard are on none."""
        same = np.ones(sizes.size, bool)
        filled = sizes.nonzero()[0]
        if not filled.size:
            return same
        members = np.concatenate(self.members)
        numbers: dict[str, int] = {"": 0}
        node = np.zeros(max(int(members.max()), *ranks, 0) + 1, np.int64)
        for rank, facts in ranks.items():
            node[rank] = numbers.setdefault(facts.node, len(numbers))
        of_members = node[members]
        first = np.cumsum(sizes[filled]) - sizes[filled]
        same[filled] = np.minimum.reduceat(of_members, first) == np.maximum.reduceat(of_members, first)
        return same


def _put_bounded(lists: dict[str, _List], uid: str, told: _List) -> None:
    """Of too many the oldest is forgotten."""
    if len(lists) >= MOST_LOOKUPS:
        del lists[next(iter(lists))]
    lists[uid] = told


def _joined(lookups: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(lookups) if lookups else np.zeros(0, np.uint16)


def _count_ranks(text: str) -> int:
    """How many ranks a text of ranges names, without listing them; 0 where it is malformed, or names one too high."""
    count = 0
    try:
        for part in filter(None, text.split(",")):
            low, _, high = part.partition("-")
            last = int(high or low)
            if last >= MOST_RANKS:
                return 0
            count += max(0, last - int(low) + 1)
    except ValueError:
        return 0
    return count
