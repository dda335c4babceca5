"""The C recorder's hooks, for both backends: the same installation as in Python, with callables made in C.

Importing this raises ImportError where the C module was not built. Threads and rules are those of collectives_hooks,
collectives_dispatch and completion, whose Python hooks these replace one for one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _recorder
from .collectives_dispatch import DispatchHooks, DispatchPlan
from .collectives_hooks import HOOK_ID, OfficialHooks
from .groups import RankGroup

if TYPE_CHECKING:
    from .collectives_recorder import CollectiveRecorder


class NativeCompletion:
    """CompletionTracker in C: the same methods over ``_recorder.OpenWork``."""

    def __init__(self, writer: Any) -> None:
        from torch._C._distributed_c10d import Work

        self._work_class: Any = Work
        self._original_wait: Any = Work.wait
        self._installed = False
        self.open_work = _recorder.OpenWork(writer, Work.is_completed, Work.wait)
        self.poll = self.open_work.poll
        self.hold = self.open_work.hold
        self.clear = self.open_work.clear

    def __len__(self) -> int:
        return len(self.open_work)

    @property
    def errors(self) -> int:
        """How many Works ended with an error, as the C module counts them."""
        return self.open_work.errors

    def install_wait(self) -> None:
        """Wrap ``Work.wait`` so that waits from Python stamp the end of what they waited for."""
        self._work_class.wait = self.open_work.make_wait(self._work_class)
        self._installed = True

    def uninstall_wait(self) -> None:
        """Puts torch's own ``Work.wait`` back."""
        if self._installed:
            self._work_class.wait = self._original_wait
            self._installed = False


def make_switch(on_error: Callable[[BaseException], None]) -> _recorder.HookSwitch:
    """A switch that hooks in C read. on_error: is called with what a hook raised."""
    return _recorder.HookSwitch(on_error)


def _make_group(hooks: CollectiveRecorder, group: RankGroup, dtypes: dict[Any, int]) -> _recorder.HookGroup:
    registry = hooks.registry

    def define() -> tuple[int, tuple[int, ...], bool, bool] | None:
        if not registry.define(group):
            return None
        return group.row, group.members, group.on_cpu, group.cpu_on_host

    writer: Any = hooks.writer
    completion: Any = hooks.completion
    switch: Any = hooks.switch
    return _recorder.HookGroup(writer, completion.open_work, switch, dtypes, define, hooks.sites.note, hooks.completes)


class NativeOfficialHooks(OfficialHooks):
    """Pre and post hooks in C."""

    def install(self) -> None:
        """Gives the C module the table of operations before any of its hooks can run."""
        _recorder.set_operations(self.operations)
        super().install()

    def hook_group(self, pg: Any, group: RankGroup) -> None:
        """Registers a C pre-hook on the group and, where ends are recorded, a C post-hook."""
        hook_group = _make_group(self.hooks, group, self.dtypes)
        pg.register_pre_hook(HOOK_ID, _recorder.PreHook(hook_group))
        if self.hooks.completes:
            pg.register_post_hook(HOOK_ID, _recorder.PostHook(hook_group))


class NativeDispatchHooks(DispatchHooks):
    """BackendSelect implementations in C."""

    def __init__(self, hooks: CollectiveRecorder) -> None:
        super().__init__(hooks)
        self._groups: dict[int, tuple[RankGroup, _recorder.HookGroup]] = {}

    def hook_group(self, pg: Any, group: RankGroup) -> None:
        """Lets C forget the groups that it knows: a new group may have the address of one that is gone."""
        _recorder.forget_groups()

    def forget_group(self, group: RankGroup) -> None:
        """Drops the entries of the group here, and all that C remembers: it asks again for what lives."""
        self._groups = {key: entry for key, entry in self._groups.items() if entry[0] is not group}
        _recorder.forget_groups()

    def _find(self, pg: Any) -> _recorder.HookGroup | None:
        group = self.hooks.registry.find(pg)
        if group is None:
            return None
        entry = self._groups.get(id(pg))
        if entry is None or entry[0] is not group:
            entry = (group, _make_group(self.hooks, group, self.dtypes))
            self._groups[id(pg)] = entry
        return entry[1]

    def _build(self, plan: DispatchPlan) -> Any:
        switch: Any = self.hooks.switch
        return _recorder.DispatchHook(
            gate=switch,
            redispatch=plan.redispatch,
            after=plan.after,
            unbox_group=plan.unbox_group,
            unbox_work=plan.unbox_work,
            find=self._find,
            name=f"record_{plan.name}",
            op=plan.op,
            flags=plan.base_flags,
            silent=plan.silent,
            group_index=plan.group_index,
            root_index=plan.root_index,
            sized_index=plan.sized_index,
            output_index=plan.output_index,
        )
