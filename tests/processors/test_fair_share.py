"""Who makes room: the idlest of the owner who has most, however the calls went."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whichrank.processors.fair_share import FairShare

_STEPS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.booleans()), max_size=60)


@given(steps=_STEPS)
def test_the_idlest_of_the_owner_who_has_most_is_first(steps: list[tuple[int, int, bool]]) -> None:
    share, names = FairShare(), dict[str, str]()  # the idlest first
    for name_number, owner_number, is_touched in steps:
        name, owner = f"n{name_number}", f"o{owner_number}"
        names.pop(name, None)
        if is_touched:
            share.touch(name, owner)
            names[name] = owner
        else:
            share.remove(name)
        assert set(share) == set(names)
        if not names:
            continue
        owners = list(names.values())
        most = max(map(owners.count, owners))
        first = share.first_to_go()
        assert owners.count(names[first]) == most
        assert first == next(each for each in names if names[each] == names[first])
        assert share.count_of(names[first]) == most


def test_of_owners_with_one_each_who_was_quiet_longest_goes() -> None:
    share = FairShare((f"n{number}", f"o{number}") for number in range(5))
    share.touch("n0", "o0")
    assert share.first_to_go() == "n1"


@given(steps=_STEPS)
def test_the_newest_need_not_be_touched_again(steps: list[tuple[int, int, bool]]) -> None:
    always, seldom, spared = FairShare(), FairShare(), 0
    for name_number, owner_number, is_touched in steps:
        for _ in range(2):
            name, owner = f"n{name_number}", f"o{owner_number}"
            if not is_touched:
                always.remove(name)
                seldom.remove(name)
                continue
            always.touch(name, owner)
            if seldom.is_newest(name, owner):
                spared += 1
            else:
                seldom.touch(name, owner)
        assert list(always) == list(seldom)
        assert [list(always.names_of(f"o{n}")) for n in range(4)] == [list(seldom.names_of(f"o{n}")) for n in range(4)]
        assert not len(always) or always.first_to_go() == seldom.first_to_go()
    assert spared >= sum(is_touched for _, _, is_touched in steps)
