"""Which slot is written over: never the last way back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whichrank.checkpoint.slot_choice import SlotStates
from whichrank.checkpoint.slot_files import OWN_SLOTS, CheckpointName


def test_slots_take_turns_and_the_third_is_taken_only_when_it_is_needed() -> None:
    states = SlotStates(OWN_SLOTS)
    used = []
    for step in range(1, 6):
        slot = states.choose()
        assert slot is not None
        used.append(slot)
        name = CheckpointName(1, step)
        states.use(slot, name)
        states.became_whole(name, is_copied=True)
        states.release(slot)
    assert used == [0, 1, 0, 1, 0]
    states.use(0)  # step 5 is carried to storage
    for step in (6, 7):
        slot = states.choose()
        assert slot == (1 if step == 6 else 2)
        states.use(slot, CheckpointName(1, step))
        states.became_whole(CheckpointName(1, step), is_copied=True)
        states.release(slot)


@given(
    st.lists(st.tuples(st.sampled_from(["save", "whole", "copied", "fails", "carry", "carried"]), st.integers(0, 9)))
)
def test_the_newest_whole_and_the_newest_copied_stay(acts: list[tuple[str, int]]) -> None:
    states, step = SlotStates(OWN_SLOTS), 0
    under_way: dict[int, CheckpointName] = {}
    carried: list[tuple[int, CheckpointName]] = []
    whole: set[CheckpointName] = set()
    copied: set[CheckpointName] = set()
    for act, which in acts:
        if act == "save":
            slot = states.choose()
            if slot is not None:
                step += 1
                states.use(slot, CheckpointName(1, step))
                under_way[slot] = CheckpointName(1, step)
        elif act in ("whole", "copied", "fails") and under_way:
            slot = list(under_way)[which % len(under_way)]
            name = under_way.pop(slot)
            states.release(slot)
            if act != "fails":
                states.became_whole(name, is_copied=act == "copied")
                whole.add(name)
                copied |= {name} if act == "copied" else set()
        elif act == "carry" and states.held:
            slot = list(states.held)[which % len(states.held)]
            states.use(slot)
            carried.append((slot, states.held[slot]))
        elif act == "carried" and carried:
            states.release(carried.pop(which % len(carried))[0])
        held = set(states.held.values())
        assert not whole or max(whole) in held
        assert not copied or max(copied) in held
        assert all(states.held[slot] == name for slot, name in carried)
        assert len(under_way) <= OWN_SLOTS
