"""``NearCheckpoints``: what a training script calls.

near = NearCheckpoints("run-17", local="/dev/shm", persistent="/mnt/checkpoints/run-17", persistent_every=20)
restored = near.load(state)            # newest whole one of all tiers, in place; None: begin anew
near.save(state, step=step)            # every few steps: one copy into memory, and training goes on
"""

from __future__ import annotations

import atexit
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader

from ..instrumentation.trackers.checkpoint_identity import checkpoint_tier
from ..telemetry.checkpoint_states import Tier
from .memory_slots import MemorySlots
from .node_partners import keep_ranks, node_of, partners
from .orders import Kept, Ready, SaveOrder, Uploaded, WriterPlace
from .outcomes import Restored, SaveOutcome
from .restore import Inventory, RestorePlan, carry_parts, choose, part_of, parts_in
from .ring_words import ReadInRing, SaveInRing, near_place
from .slot_choice import SlotStates
from .slot_files import OWN_SLOTS, CheckpointName, SlotFile, open_folder
from .state_layout import StateParts, lay_out, take_apart, views_into
from .uploads import folder_of, whole_in
from .writer_client import WriterClient

#: Saves that a writer has not finished; more are left out, counted.
MOST_UNDER_WAY = 2
#: Checkpoints that are tried, from the newest on, where parts of them turn out to be broken.
_MOST_TRIES = 8
_T = TypeVar("_T")


class NearCheckpoints:
    """To be made once, on all ranks, after ``init_process_group``; ``load`` and ``save`` are for all ranks as well.

    name: of the run, the same in each attempt. local: a folder of the node, in memory or on its disk; for each node its
    own. persistent: a folder that all nodes see, for ``torch.distributed.checkpoint``, or None; there goes each
    ``persistent_every``-th save; keep_persistent: so many of them, 0 all. wait_s: for other ranks' writers.

    Memory of a node: three states of its ranks at most, and two of a partner's. Raises OSError, ValueError where the
    folders or the name cannot be used; later troubles of a tier are told and counted, and training goes on.
    """

    def __init__(
        self,
        name: str,
        local: str | os.PathLike[str] = "/dev/shm",
        persistent: str | os.PathLike[str] | None = None,
        *,
        persistent_every: int = 10,
        keep_persistent: int = 0,
        wait_s: float = 600.0,
    ) -> None:
        if persistent_every < 1 or keep_persistent < 0:
            raise ValueError("persistent_every: 1 or more; keep_persistent: 0 or more")
        self._name, self._every = name, persistent_every
        self._persistent = os.fspath(persistent) if persistent is not None else None
        self._folder = open_folder(local, name)
        is_group = dist.is_available() and dist.is_initialized()
        self._rank, self._world = (dist.get_rank(), dist.get_world_size()) if is_group else (0, 1)
        self._group: Any = dist.new_group(backend="gloo") if is_group else None
        self._nodes = self._all(node_of(self._folder))
        self._attempt_ns = self._all(time.time_ns())[0]
        self._partners = partners(self._nodes)
        self._with_sync = checkpoint_tier(self._folder / "x") is not Tier.MEMORY
        self._keep_persistent, self._wait_s = keep_persistent, wait_s
        self._lock = threading.Condition()
        self._states = SlotStates(OWN_SLOTS)
        self._memory = MemorySlots(self._folder, self._rank)
        for slot in range(OWN_SLOTS):
            found = SlotFile(self._folder, self._rank, slot).manifest()
            if found is not None:
                self._states.held[slot] = found.name
        self._telling: dict[CheckpointName, SaveInRing] = {}
        self._under_way = 0
        self._count = 0
        self._structure = b""
        self._newest_whole: CheckpointName | None = None
        self._is_lost = self._is_closed = False
        #: Saves that were left out, by why.
        self.left_out: dict[str, int] = {}
        self._said: set[str] = set()
        if self._rank == 0 and self._partners is None and self._world > 1:
            self._say("one node: no partner holds a copy, a node that is lost takes its checkpoints along")
        elif self._partners is not None and not self._partners.is_apart and self._rank == 0:
            self._say("nodes have unlike numbers of ranks: some copies stay on their node")
        # It takes seconds until it has loaded torch: that goes on while the job prepares.
        self._writer = WriterClient(self._place(), self._hear, self._lost)
        atexit.register(self.close)

    # --- saving -------------------------------------------------------------------------------------------------------
    def save(self, state: dict[str, Any], step: int, *, persistent: bool | None = None) -> SaveOutcome:
        """Copies the state, and returns; a process beside makes a checkpoint of it. All ranks, after the same steps.

        state: as ``torch.distributed.checkpoint.state_dict.get_state_dict`` gives it, and values beside.
        persistent: to storage as well, or not, whatever its turn; the same on all ranks. Raises TypeError for a state
        that cannot be taken, and nothing else.
        """
        begin_s = time.monotonic()
        self._count += 1
        upload = self._persistent is not None and (self._count % self._every == 0 if persistent is None else persistent)
        name = CheckpointName(self._attempt_ns, step)
        parts = take_apart(state)
        try:
            why, slot = self._reserve(name)
            if slot is not None:
                why = self._copy(name, slot, parts, upload=upload)
            if why:
                self._leave_out(name, why, upload=upload)
        except Exception as error:  # edge: a tier's trouble is not the training's
            why = f"{type(error).__name__}: {error}"
            self._say(f"not saved: {why}")
        return SaveOutcome(is_taken=not why, why=why, blocked_s=time.monotonic() - begin_s)

    def _reserve(self, name: CheckpointName) -> tuple[str, int | None]:
        with self._lock:
            if self._is_lost:
                return "the writer process has ended", None
            if self._under_way >= MOST_UNDER_WAY:
                return "two saves are under way", None
            slot = self._states.choose()
            if slot is None:
                return "no slot is free while a checkpoint is carried to storage", None
            self._states.use(slot, name)
            self._under_way += 1
        return "", slot

    def _copy(self, name: CheckpointName, slot: int, parts: StateParts, *, upload: bool) -> str:
        """Returns why it did not go, "" if it did."""
        layout = lay_out(parts)
        telling = SaveInRing(near_place(self._name, name.step), os.fspath(self._folder), layout.size_bytes)
        try:
            with telling:
                self._memory.copy(slot, layout, parts.tensors)
                values = pickle.dumps(parts.values)
                structure = pickle.dumps(parts.skeleton)
        except Exception as error:  # edge: no space, a value that cannot be pickled
            with self._lock:
                self._states.release(slot)
                self._states.held.pop(slot, None)
                self._under_way -= 1
            return f"{type(error).__name__}: {error}"
        with self._lock:
            self._telling[name] = telling
        is_new, self._structure = structure != self._structure, structure
        order = SaveOrder(
            name=name, slot=slot, layout=layout, values=values, structure=structure if is_new else b"", upload=upload,
            whole=self._newest_whole,
        )  # fmt: skip
        if not self._writer.order(order):
            self._lost()
            return "the writer process has ended"
        return ""

    def _leave_out(self, name: CheckpointName, why: str, *, upload: bool) -> None:
        """The other ranks' writers have to know that this step is no checkpoint."""
        self.left_out[why] = self.left_out.get(why, 0) + 1
        self._say(f"from step {name.step} on some saves are left out: {why}")
        if not self._is_lost:
            self._writer.order(SaveOrder(name=name, slot=-1, upload=upload))

    def _place(self) -> WriterPlace:
        store: tuple[str, int] | None = None
        if self._world > 1:
            with socket.socket() as free:
                free.bind(("", 0))
                host = os.environ.get("MASTER_ADDR") or socket.gethostname()
                store = self._all((host, free.getsockname()[1]))[0]
        found = self._partners
        return WriterPlace(
            rank=self._rank, world=self._world, folder=os.fspath(self._folder), store=store,
            next_rank=-1 if found is None else found.next_rank[self._rank],
            previous_rank=-1 if found is None else found.previous_rank[self._rank],
            is_previous_here=found is not None and self._is_here(found.previous_rank[self._rank]),
            with_sync=self._with_sync, keep_ranks=keep_ranks(self._rank, self._nodes, found),
            persistent=self._persistent, keep_persistent=self._keep_persistent, wait_s=self._wait_s,
        )  # fmt: skip

    def _is_here(self, rank: int) -> bool:
        return self._nodes[rank] == self._nodes[self._rank]

    # --- what the writer says, in its thread --------------------------------------------------------------------------
    def _hear(self, word: Kept | Uploaded | Ready) -> None:
        if isinstance(word, Ready):
            if word.problem:
                self._say(word.problem)
            return
        with self._lock:
            telling = self._telling.get(word.name)
            self._states.release(word.slot)
            if isinstance(word, Kept):
                self._take_kept(word, telling)
            elif telling is not None:
                del self._telling[word.name]
                telling.carried(word.problem)
            self._lock.notify_all()
        if word.problem:
            self._say(word.problem)

    def _take_kept(self, word: Kept, telling: SaveInRing | None) -> None:
        if word.slot >= 0:
            self._under_way -= 1
        if word.is_whole:
            self._newest_whole = word.name
            self._states.became_whole(word.name, is_copied=word.is_copied)
        if telling is not None and word.is_whole and self._partners is not None and not word.is_copied:
            telling.near_is_over(word.problem or "whole on all ranks, but not with all partners")
        elif telling is not None and not word.is_whole and not word.problem:
            telling.near_is_left_out()
        elif telling is not None:
            telling.near_is_over(word.problem)
        if word.will_upload and self._persistent is not None and word.slot >= 0:
            self._states.use(word.slot)
            if telling is not None:
                telling.carry(os.fspath(folder_of(self._persistent, word.name)), self._persistent)
        else:
            self._telling.pop(word.name, None)

    def _lost(self) -> None:
        with self._lock:
            is_news, self._is_lost = not self._is_lost and not self._is_closed, True
            left, self._telling = self._telling, {}
            self._lock.notify_all()
        for telling in left.values():
            telling.near_is_over("the writer process has ended")
            telling.carried("the writer process has ended")
        if is_news:
            self._say("the writer process has ended: no more checkpoints near the job, and none to storage")

    def wait(self, timeout_s: float = 60.0) -> bool:
        """Until what was saved is whole, on all ranks, and in storage where it goes there. False: not in time."""
        with self._lock:
            done = self._lock.wait_for(lambda: self._is_lost or not (self._telling or self._under_way), timeout_s)
            return done and not self._is_lost

    def newest_whole_step(self) -> int | None:
        """The newest checkpoint near the job that all ranks have by now, also that of ``load``."""
        return None if self._newest_whole is None else self._newest_whole.step

    def newest_copied_step(self) -> int | None:
        """The newest checkpoint whose parts all lie with their partners as well: a node may be lost."""
        return None if self._states.copied is None else self._states.copied.step

    def memory_bytes(self) -> int:
        """What lies in the local folder now, of all ranks of this node."""
        return sum(each.stat().st_size for each in self._folder.glob("*.data"))

    def close(self, patience_s: float = 60.0) -> None:
        """Lets the writer finish what is under way, and end."""
        if not self._is_closed:
            self.wait(patience_s)
            self._is_closed = True
            self._writer.close(min(patience_s, 5.0))

    # --- restoring ----------------------------------------------------------------------------------------------------
    def load(self, state: dict[str, Any], step: int | None = None) -> Restored | None:
        """Puts the newest whole checkpoint over all tiers into the state, in place; before the first ``save``.

        step: that one and no other. None: there is none, on all ranks alike. Raises RuntimeError where ranks are lost
        meanwhile, and what ``torch.distributed.checkpoint.load`` raises.
        """
        begin_s = time.monotonic()
        parts = take_apart(state)
        needs = lay_out(parts).fingerprint
        is_lowest = self._nodes.index(self._nodes[self._rank]) == self._rank
        mine = Inventory(
            node=self._nodes[self._rank], needs=needs,
            parts=parts_in(self._folder, self._world) if is_lowest else (),
            persistent=tuple(whole_in(self._persistent)),
        )  # fmt: skip
        told = self._all(mine)
        with ReadInRing() as reading:
            choice = self._choose(told, step)
            if choice.name is None:
                return None
            if choice.holders:
                self._read_near(choice, told, parts)
                reading.read(near_place(self._name, choice.name.step))
            else:
                assert self._persistent is not None
                where, is_alone = folder_of(self._persistent, choice.name), self._group is None
                state_dict_loader.load(state, checkpoint_id=where, process_group=self._group, no_dist=is_alone)
        return self._restored(choice, time.monotonic() - begin_s)

    def _restored(self, choice: RestorePlan, seconds: float) -> Restored:
        assert choice.name is not None
        self._newest_whole = choice.name if choice.holders else None
        self._states.whole = self._states.copied = self._newest_whole
        moved = tuple(r for r, holder in enumerate(choice.holders) if self._nodes[holder] != self._nodes[r])
        near = "partner" if self._rank in moved else "local"
        source = near if choice.holders else "persistent"
        if self._rank == 0:
            self._say(f"goes on from step {choice.name.step}, {_from_where(choice, moved)}, {seconds:.1f} s")
        return Restored(step=choice.name.step, source=source, from_partner=moved, seconds=seconds)

    def _choose(self, told: Sequence[Inventory], step: int | None) -> RestorePlan:
        """The newest whose parts are what they were, by their checksums."""
        bad: frozenset[tuple[str, int, int]] = frozenset()
        for _ in range(_MOST_TRIES):
            choice = choose(told, bad, step)
            if choice.name is None or not choice.holders:
                return choice
            broken = set()
            parts = next(each.parts for each in told if each.node == told[self._rank].node)
            for owner, holder in enumerate(choice.holders):
                found = part_of(self._folder, owner, choice.name, parts) if holder == self._rank else None
                if found is not None and not found[0].is_intact(found[1]):
                    broken.add((told[self._rank].node, owner, found[0].slot))
            all_broken: frozenset[tuple[str, int, int]] = frozenset().union(*self._all(broken))
            if not all_broken:
                return choice
            bad |= all_broken
            self._say(f"step {choice.name.step}: {len(all_broken)} parts are not what was saved")
        return RestorePlan(None)

    def _read_near(self, choice: RestorePlan, told: Sequence[Inventory], parts: StateParts) -> None:
        content, manifest = carry_parts(choice, self._rank, self._folder, told, self._group)
        layout = lay_out(parts)
        memory = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        with torch.no_grad():
            for tensor, saved in zip(parts.tensors, views_into(memory, layout.extents), strict=True):
                tensor.copy_(saved)
        values = pickle.loads(memoryview(content)[manifest.tensor_bytes :])
        for put, value, now in zip(parts.set_value, values, parts.values, strict=True):
            if value is not now:
                put(value)

    # --- all ranks ----------------------------------------------------------------------------------------------------
    def _all(self, mine: _T) -> list[_T]:
        """What each rank says, by rank."""
        if self._group is None:
            return [mine]
        found: list[Any] = [None] * self._world
        dist.all_gather_object(found, mine, group=self._group)
        return found

    def _say(self, line: str) -> None:
        what = line.partition(": ")[2] or line
        if what not in self._said and len(self._said) < 64:
            self._said.add(what)
            print(f"whichrank: near checkpoints: rank {self._rank}: {line}", file=sys.stderr)


def _from_where(choice: RestorePlan, moved: Sequence[int]) -> str:
    if not choice.holders:
        return "from storage"
    return (
        f"near the job, {len(moved)} of {len(choice.holders)} ranks' parts from partners" if moved else "near the job"
    )
