"""Backend for torch >= 2.14: ProcessGroup pre and post hooks, one pair of closures per group.

Runs on whichever thread issues a collective. Hooks never raise: an exception would break the user's collective. They
are not unregistered while the process lives (unregistering while a hook runs or another thread issues crashes it): to
stop, a flag is set and they return at once. At its end they have to be: groups that the script does not destroy are
destroyed by C++ after the interpreter is gone, and a hook in Python that goes with them then is a segmentation fault.
"""

from __future__ import annotations

import functools
import importlib
import secrets
from collections.abc import Sequence
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from ..telemetry.ring_layout import call_mark
from ..telemetry.vocabulary import EventFlag, Op
from .groups import RankGroup
from .hook_switch import SAMPLE_EVERY, note_sample
from .operations import NO_SIZE_OPS, ROOTED_OPS, SILENT_OPS, dtype_codes, families_by_number, sum_bytes

if TYPE_CHECKING:
    from .collectives_recorder import CollectiveRecorder

_P2P = int(EventFlag.P2P)
_NO_SIZE = int(EventFlag.NO_SIZE)
_FAILED = int(EventFlag.FAILED)
_RECV = int(Op.RECV)
_ALL_GATHER = int(Op.ALL_GATHER)

#: A random 63-bit id: hooks run in order of id and registering a used id silently replaces the other hook.
HOOK_ID = secrets.randbits(62) | 1


def is_supported() -> bool:
    """Whether this torch's ProcessGroup has pre and post hooks."""
    from torch._C._distributed_c10d import ProcessGroup

    return hasattr(ProcessGroup, "register_pre_hook") and hasattr(ProcessGroup, "register_post_hook")


class OfficialHooks:
    """Builds and registers the hook pair of each group."""

    def __init__(self, hooks: CollectiveRecorder) -> None:
        import torch
        from torch._C._distributed_c10d import HookOpName

        self._restore: tuple[Any, Any, Any] | None = None
        self.hooks = hooks
        self.dtypes = dtype_codes(torch)
        #: By the enum's number: (family, flags, takes a root, its Work may be silent).
        self.operations = {
            number: (int(op), _base_flags(op), op in ROOTED_OPS, op in SILENT_OPS)
            for number, op in families_by_number(HookOpName.__members__).items()
        }

    def install(self) -> None:
        """Wraps ``monitored_barrier``, which fires no hook; groups are hooked one by one (``hook_group``)."""
        c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
        package: Any = importlib.import_module("torch.distributed")
        original = c10d.monitored_barrier
        hooks = self.hooks

        @functools.wraps(original)
        def monitored_barrier(*args: Any, **kwargs: Any) -> Any:
            issued = hooks.begin_monitored_barrier(args[0] if args else kwargs.get("group"))
            try:
                result = original(*args, **kwargs)
            except Exception:
                if issued is not None:
                    hooks.end(*issued, _NO_SIZE | _FAILED)
                raise
            if issued is not None:
                hooks.end(*issued, _NO_SIZE)
            return result

        c10d.monitored_barrier = package.monitored_barrier = monitored_barrier
        self._restore = (c10d, package, original)

    def forget_group(self, group: RankGroup) -> None:
        """Does nothing: the group's hooks go with its object."""

    def leave(self, groups: Sequence[RankGroup]) -> None:
        """Unregisters the hooks from every group. At the end of the process, and of a forked child, only."""
        for group in groups:
            pg = group.pg()
            if pg is not None:
                pg.unregister_pre_hook(HOOK_ID)
                if self.hooks.completes:
                    pg.unregister_post_hook(HOOK_ID)

    def uninstall(self) -> None:
        """Puts ``monitored_barrier`` back; hooks of groups stay."""
        if self._restore is not None:
            c10d, package, original = self._restore
            c10d.monitored_barrier = package.monitored_barrier = original
            self._restore = None

    def hook_group(self, pg: Any, group: RankGroup) -> None:
        """Register a hook pair on a group. The closures hold no reference to the group object itself."""
        pre, post = self._make_pair(group)
        pg.register_pre_hook(HOOK_ID, pre)
        if self.hooks.completes:
            pg.register_post_hook(HOOK_ID, post)

    def _make_pair(self, group: RankGroup) -> tuple[Any, Any]:
        #: Between pre and post hook: thread -> (sequence, flags, may its Work be held, may its Work be silent).
        issued: dict[int, tuple[int, int, bool, bool]] = {}
        return self._make_pre(group, issued), self._make_post(group, issued)

    def _make_pre(self, group: RankGroup, issued: dict[int, tuple[int, int, bool, bool]]) -> Any:
        hooks, operations, dtypes = self.hooks, self.operations.get, self.dtypes.get
        switch, writer, completes, note_site = hooks.switch, hooks.writer, hooks.completes, hooks.sites.note
        enqueue = writer.enqueue
        completion: Any = hooks.completion
        held, silent_held = getattr(completion, "held", {}), getattr(completion, "silent", {})

        def pre(args: Any) -> None:
            if switch.stopped:
                return
            try:
                begin_ns = monotonic_ns()
                operation = operations(int(args.name))
                if operation is None:
                    return
                op, flags, rooted, silent = operation
                if not group.defined:
                    hooks.registry.define(group)
                row = group.row
                if row < 0:
                    return
                if not switch.enabled:
                    writer.skip(row, flags)
                    return
                if held or silent_held:
                    completion.poll_oldest()
                tensors = args.output_tensors if op == _RECV else args.input_tensors
                tensor, nbytes, dtype = None, 0, 0
                if tensors:
                    tensor = tensors[0]
                    dtype = dtypes(tensor.dtype, 0)
                    try:
                        nbytes = tensor.nbytes if len(tensors) == 1 else sum_bytes(tensors)
                    except Exception:
                        flags |= _NO_SIZE
                if op == _ALL_GATHER and not group.on_cpu and not flags & _NO_SIZE:
                    flags |= _uneven(args.output_tensors)
                peer = -1
                if rooted and 0 <= (root := args.root) < len(group.members):
                    peer = group.members[root]
                seq = enqueue(row, op, nbytes, dtype, peer, flags)
                note_site(call_mark(row, seq, flags))
                if switch.check is not None:
                    switch.check(call_mark(row, seq, flags), op, peer, tensors)
                if completes:
                    on_host = group.on_cpu or (tensor is not None and tensor.is_cpu and group.cpu_on_host)
                    thread = get_ident()
                    if issued and (raised := issued.get(thread)) is not None:
                        # This thread's last operation never reached its post hook: it raised, and will not end.
                        writer.complete(row, raised[0], 0, raised[1] | _FAILED)
                    issued[thread] = (seq, flags, on_host, silent)
                if seq % SAMPLE_EVERY == 0:
                    note_sample(switch, begin_ns)
            except Exception as error:
                hooks.fail(error)

        return pre

    def _make_post(self, group: RankGroup, issued: dict[int, tuple[int, int, bool, bool]]) -> Any:
        hooks = self.hooks
        switch, writer = hooks.switch, hooks.writer
        completion: Any = hooks.completion

        def post(args: Any) -> None:
            if switch.stopped:
                return
            try:
                entry = issued.pop(get_ident(), None)
                if entry is None:
                    return
                seq, flags, on_host, silent = entry
                if not on_host:
                    return
                work = args.work
                if work is None:
                    writer.complete(group.row, seq, 0, flags)
                else:
                    completion.hold(work, group.row, seq, flags, silent)
            except Exception as error:
                hooks.fail(error)

        return post


def _uneven(outputs: list[Any]) -> int:
    """NO_SIZE where the parts gathered from the members differ in size, which device backends allow."""
    if len(outputs) < 2:
        return 0
    first = outputs[0].nbytes
    return 0 if all(tensor.nbytes == first for tensor in outputs) else _NO_SIZE


def _base_flags(op: Op) -> int:
    flags = _NO_SIZE if op in NO_SIZE_OPS or op == Op.UNKNOWN else 0
    return flags | (_P2P if op in (Op.SEND, Op.RECV) else 0)
