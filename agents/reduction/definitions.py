"""What a rank defines once and its events refer to: its groups, where its launch has met, that it joins, its notes.

Polling thread. Definitions are read after the events of a flush: whatever an event refers to was defined before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...telemetry import ring_layout as L
from ...telemetry.records import Group
from ...telemetry.tables import NO_GROUP
from ...telemetry.vocabulary import EventName
from ..base.health import AgentHealth
from ..ranks.emergency_events import emergency_told
from ..ranks.launches import token_of
from ..ranks.pending_events import PendingEvents
from ..ranks.rank_events import bad_input_attributes, joining_attributes
from ..ranks.watched_rank import WatchedRank
from ..rings.ring_file import Definition
from .block_builder import BlockBuilder
from .group_identity import group_from_definition

_MAX_NOTES = 32
#: Pieces of a ring's definitions that one flush reads; the others come with the next.
_PIECES = 8
_TOLD_OF_GROUP = ("uid", "name", "desc", "ranks", "size", "backend", "timeout_s", "is_default")


class Definitions:
    def __init__(self, news: PendingEvents, blocks: BlockBuilder, health: AgentHealth) -> None:
        self._news = news
        self._blocks = blocks
        self._health = health
        self._groups_told: set[tuple[str, int]] = set()  # launch and agent-wide number of defined groups

    def read(self, rank: WatchedRank, ranks: Sequence[WatchedRank], now_ns: int) -> None:
        """Reads what a rank has defined since the last call, and tells it with the next flush: groups, token, joining,
        notes.

        ranks: all that are watched. now_ns: monotonic.
        """
        used = rank.hot.definitions_used
        if used == rank.reading.definitions_read:
            return
        for _ in range(_PIECES):
            begin = rank.reading.definitions_read
            found, position, problem = rank.ring.read_definitions(begin, used)
            is_whole = position >= min(used, rank.ring.header.definitions_bytes) or position <= begin
            if is_whole and position != used and not problem:
                problem = f"definitions end inside an entry at byte {position} of {used}"
            rank.reading.definitions_read = used if is_whole else position
            if problem:
                self._health.report(f"ring {rank.ring.path}: {problem}")
            self._take(rank, ranks, found, now_ns)
            if is_whole:
                return

    def _take(self, rank: WatchedRank, ranks: Sequence[WatchedRank], found: Sequence[Definition], now_ns: int) -> None:
        for definition in found:
            if definition.kind == L.DEFINITION_GROUP:
                self._define_group(rank, definition.index, definition.payload, now_ns)
            elif definition.kind == L.DEFINITION_ATTEMPT:
                token = token_of(definition.payload)
                if token:
                    self._learn_token(rank, ranks, token, now_ns)
            elif definition.kind == L.DEFINITION_JOINING:
                time_ns, values = joining_attributes(rank, definition.payload, now_ns)
                self._news.behind_blocks(EventName.RANK_JOINING, rank.identity, time_ns, values)
            elif definition.kind == L.DEFINITION_BAD_INPUT:
                bad_input = bad_input_attributes(definition.payload, rank.groups.uids)
                if bad_input is not None:
                    self._news.before_blocks(EventName.RANK_BAD_INPUT, rank.identity, now_ns, bad_input)
            elif definition.kind == L.DEFINITION_SAVE_FAILED:
                text = definition.payload.get("error")
                if isinstance(text, str) and len(rank.reading.save_errors) < _MAX_NOTES:
                    rank.reading.save_errors[definition.index] = L.cut_text(text, 500)
            elif definition.kind == L.DEFINITION_EMERGENCY:
                emergency = emergency_told(definition.payload, now_ns)
                if emergency is not None:
                    self._news.behind_blocks(EventName.CHECKPOINT_EMERGENCY, rank.identity, *emergency)
            elif definition.kind == L.DEFINITION_NOTE:
                text = definition.payload.get("text")
                if isinstance(text, str) and len(rank.notes) < _MAX_NOTES:
                    text = L.cut_text(text, 500)
                    rank.notes.append(text)
                    self._health.report(f"rank {rank.rank} (pid {rank.pid}) notes: {text}")

    def tell_again(self, ranks: Sequence[WatchedRank], now_ns: int) -> None:
        """Lets all definitions of these ranks be read and told again: somebody may have missed them."""
        self._groups_told.clear()
        for rank in ranks:
            if rank.token:
                self._tell_token(rank, rank.token, now_ns)
            rank.reading.definitions_read = 0

    def forget_launch(self, launch: str) -> None:
        """Forgets which groups of a launch were told: no rank of it is watched any more."""
        self._groups_told = {told for told in self._groups_told if told[0] != launch}

    def _learn_token(self, rank: WatchedRank, ranks: Sequence[WatchedRank], token: str, now_ns: int) -> None:
        """Where the rank's launch has met the others; told once, by the first of its ranks."""
        if not any(peer.token for peer in ranks if peer.identity.attempt == rank.identity.attempt):
            self._tell_token(rank, token, now_ns)
        rank.token = token

    def _tell_token(self, rank: WatchedRank, token: str, now_ns: int) -> None:
        self._news.before_blocks(EventName.LAUNCH_MET, replace(rank.identity, rank=-1), now_ns, {"token": token})

    def _define_group(self, rank: WatchedRank, row: int, payload: dict[str, Any], now_ns: int) -> None:
        if row >= rank.ring.header.group_rows:
            self._health.report(f"ring {rank.ring.path}: group row {row} does not exist")
            return
        try:
            group: Group = group_from_definition(payload)
        except ValueError as error:
            self._health.report(f"ring {rank.ring.path}: {error}")
            return
        rank.groups.uids[row] = group.uid
        number = self._blocks.define_group(rank, row, group)
        if number != NO_GROUP and (rank.identity.attempt, number) not in self._groups_told:
            self._groups_told.add((rank.identity.attempt, number))
            attributes = {name: getattr(group, name) for name in _TOLD_OF_GROUP}
            self._news.before_blocks(EventName.GROUP_DEFINED, replace(rank.identity, rank=-1), now_ns, attributes)
        if row not in rank.groups.numbers:
            self._health.drop("groups_over_limit")
            return
        rank.ring.expect_groups(max(rank.groups.numbers) + 1)
        rank.read_page_again()
