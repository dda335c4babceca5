"""Backend for torch 2.6 to 2.13, which have no hooks: an implementation of every c10d operation at BackendSelect.

Every way of issuing a collective passes there (Python, DDP's C++ reducer, FSDP2, functional collectives, DTensor,
point-to-point). Runs on the issuing thread, records, and redispatches; ``redispatch`` releases the GIL, which
``get_kernel().call_boxed`` does not (it deadlocked gloo). Installed once per process and for ever; a flag stops it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, cast

from ..telemetry.ring_layout import call_mark
from ..telemetry.vocabulary import EventFlag, Op
from .groups import RankGroup
from .hook_switch import SAMPLE_EVERY, note_sample
from .operations import NO_SIZE_OPS, ROOTED_OPS, SILENT_OPS, dtype_codes, family_of, sum_bytes

if TYPE_CHECKING:
    from .collectives_recorder import CollectiveRecorder

_P2P = int(EventFlag.P2P)
_NO_SIZE = int(EventFlag.NO_SIZE)
_FAILED = int(EventFlag.FAILED)
_ROOT_NAMES = ("root_rank", "dst", "src")
#: Operations at this key that are not collectives.
_NOT_COLLECTIVES = ("check_for_nan",)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchPlan:
    """What the hook of one c10d operation needs; indices are positions in its schema, -1 = none."""

    name: str
    redispatch: Any
    after: Any
    key_bits: Any
    unbox_group: Any
    unbox_work: Any
    op: int
    base_flags: int
    silent: bool
    group_index: int
    root_index: int
    sized_index: int
    output_index: int


class DispatchHooks:
    """Installs one hook per c10d operation; groups need no hook of their own."""

    def __init__(self, hooks: CollectiveRecorder) -> None:
        import torch

        self._torch: Any = torch
        self.hooks = hooks
        self.dtypes = dtype_codes(torch)
        self._library: Any = None

    def hook_group(self, pg: Any, group: RankGroup) -> None:
        """Does nothing: operations find their group by the ProcessGroup they are issued on."""

    def install(self) -> None:
        """Registers an implementation of every c10d operation, which records and passes on.

        The Library object must live as long as they do.
        """
        library = self._torch.library.Library("c10d", "IMPL")
        for schema in self._torch._C._jit_get_all_schemas():
            namespace, _, name = schema.name.partition("::")
            if namespace != "c10d" or schema.overload_name or name in _NOT_COLLECTIVES:
                continue
            hook = self._make_hook(name, schema)
            if hook is not None:
                library.impl(name, hook, "BackendSelect", with_keyset=True)
        self._library = library

    def forget_group(self, group: RankGroup) -> None:
        """Does nothing: the registry no longer finds the group."""

    def leave(self, groups: Sequence[RankGroup]) -> None:
        """Does nothing: groups have no hook."""

    def uninstall(self) -> None:
        """Take the implementations out, so that another install finds their place free. Only for an orderly stop, with
        no collective being issued; a hook that fails never does this, it sets the flag and passes on."""
        library, self._library = self._library, None
        if library is not None:
            library._destroy()

    def _make_hook(self, name: str, schema: Any) -> Any:
        plan = self._plan(name, schema)
        return None if plan is None else self._build(plan)

    def _plan(self, name: str, schema: Any) -> DispatchPlan | None:
        family = family_of(name)
        names = [argument.name for argument in schema.arguments]
        if family is None or "process_group" not in names:
            return None
        from torch._C._distributed_c10d import ProcessGroup, Work

        torch = self._torch
        work_class: Any = Work
        root_index = next((names.index(root) for root in _ROOT_NAMES if root in names), -1)
        gathers_list = family == Op.ALL_GATHER and "output_tensors" in names
        return DispatchPlan(
            name=name,
            redispatch=_redispatch_of(getattr(torch.ops.c10d, name).default),
            after=torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect),
            key_bits=torch._C.DispatchKeySet.raw_repr,
            unbox_group=ProcessGroup.unbox,
            unbox_work=work_class.unbox,
            op=int(family),
            base_flags=(_NO_SIZE if family in NO_SIZE_OPS else 0) | (_P2P if family in (Op.SEND, Op.RECV) else 0),
            silent=family in SILENT_OPS,
            group_index=names.index("process_group"),
            root_index=root_index if family in ROOTED_OPS else -1,
            # A barrier's tensor only carries the device.
            sized_index=-1 if family in (Op.BARRIER, Op.MONITORED_BARRIER) else _find_input(names),
            output_index=names.index("output_tensors") if gathers_list else -1,
        )

    def _recorder(self, plan: DispatchPlan) -> Callable[[tuple[Any, ...]], tuple[int, Any, int, Any]]:
        """What notes that a call begins: its arguments in; out its number (0: nothing was noted), group, flags, tensor.

        One function, and few steps: after each collective the processor has forgotten all of this, so that a step costs
        several times what it costs in a tight loop.
        """
        hooks, dtypes, plain_tensor = self.hooks, self.dtypes, self._torch.Tensor
        switch, writer, completion = hooks.switch, hooks.writer, cast("Any", hooks.completion)
        enqueue, note_site, dtype_code = writer.enqueue, hooks.sites.note, dtypes.get
        held, silent_held, completes = completion.held, completion.silent, hooks.completes
        recorded, find_recorded = hooks.registry.recorded.get, hooks.registry.find_recorded
        unbox_group, group_index, root_index = plan.unbox_group, plan.group_index, plan.root_index
        sized_index, output_index, op, base_flags = plan.sized_index, plan.output_index, plan.op, plan.base_flags

        def record(args: tuple[Any, ...]) -> tuple[int, Any, int, Any]:
            seq, flags, nbytes, dtype, traced = 0, base_flags, 0, 0, False
            group: Any = None
            tensor: Any = None
            try:
                begin_ns, pg = monotonic_ns(), unbox_group(args[group_index])
                group = recorded(id(pg)) or find_recorded(pg)
                if group is None:
                    return 0, None, flags, None
                if sized_index >= 0:
                    tensor = args[sized_index]
                    if type(tensor) is list and len(tensor) == 1:
                        tensor = tensor[0]
                    if type(tensor) is plain_tensor:
                        traced = tensor.is_meta
                        dtype = dtype_code(tensor.dtype, 0)
                        try:
                            nbytes = tensor.nbytes
                        except Exception:
                            flags |= _NO_SIZE
                    else:
                        tensor, nbytes, dtype, traced, sized = _measure(tensor, dtypes)
                        flags |= 0 if sized else _NO_SIZE
                if traced:
                    return 0, group, flags, tensor
                if not switch.enabled:
                    writer.skip(group.row, flags)
                    return 0, group, flags, tensor
                if completes and (held or silent_held):
                    completion.poll_oldest()
                if output_index >= 0 and not group.on_cpu and _is_uneven(args[output_index]):
                    flags |= _NO_SIZE
                root = args[root_index] if root_index >= 0 else -1
                peer = group.members[root] if 0 <= root < len(group.members) else -1
                seq = enqueue(group.row, op, nbytes, dtype, peer, flags)
                note_site(call_mark(group.row, seq, flags))
                if switch.check is not None and sized_index >= 0:
                    switch.check(call_mark(group.row, seq, flags), op, peer, args[sized_index])
                if seq % SAMPLE_EVERY == 0:
                    note_sample(switch, begin_ns)
            except Exception as error:
                hooks.fail(error)
            return seq, group, flags, tensor

        return record

    def _build(self, plan: DispatchPlan) -> Any:
        hooks, record, switch, key_bits = self.hooks, self._recorder(plan), self.hooks.switch, plan.key_bits
        redispatch, after, unbox_work, silent = plan.redispatch, plan.after, plan.unbox_work, plan.silent
        writer, completes, completion = hooks.writer, hooks.completes, cast("Any", hooks.completion)
        #: Bits of a key set -> the operation below this hook for it. There are as many as sorts of tensors, and finding
        #: one here is cheaper than making its key set anew.
        operations: dict[int, Any] = {}
        operation_of = operations.get
        unseen: tuple[int, Any, int, Any] = (0, None, 0, None)

        def hook(keyset: Any, *args: Any) -> Any:
            seq, group, flags, tensor = unseen if switch.stopped else record(args)
            bits = key_bits(keyset)
            below = operation_of(bits)
            if below is None:
                below = operations[bits] = partial(redispatch, keyset & after)
            if seq == 0 or not completes:
                return below(*args)
            row = group.row
            try:
                result = below(*args)
            except BaseException:
                hooks.end(row, seq, flags | _FAILED)
                raise
            try:
                if group.on_cpu or (tensor is not None and tensor.is_cpu and group.cpu_on_host):
                    boxed = result[-1] if type(result) is tuple else result
                    if boxed is None:
                        writer.complete(row, seq, 0, flags)
                    else:
                        completion.hold(unbox_work(boxed), row, seq, flags, silent)
            except Exception as error:
                hooks.fail(error)
            return result

        hook.__name__ = f"record_{plan.name}"
        return hook


def _redispatch_of(operation: Any) -> Any:
    """What OpOverload.redispatch calls, without the call; torch's own name where that is another."""
    return getattr(getattr(operation, "_handle", None), "redispatch_boxed", None) or operation.redispatch


def _measure(tensors: Any, dtypes: dict[Any, int]) -> tuple[Any, int, int, bool, bool]:
    """(first tensor, bytes, dtype code, traced instead of issued, size known) of a tensor or (nested) list of them."""
    if type(tensors) is not list:
        tensors = [tensors]
    elif tensors and type(tensors[0]) is list:
        tensors = [part for parts in tensors for part in parts]
    if not tensors:
        return None, 0, 0, False, True
    first = tensors[0]
    dtype = dtypes.get(first.dtype, 0)
    if first.is_meta or type(first).__name__ == "FakeTensor":
        return first, 0, dtype, True, True
    try:
        return first, sum_bytes(tensors), dtype, False, True
    except Exception:
        return first, 0, dtype, False, False


def _is_uneven(outputs: list[list[Any]]) -> bool:
    """Whether the tensors gathered from the members differ in size, which device backends allow."""
    parts = [part for output in outputs for part in output]
    return any(part.numel() != parts[0].numel() for part in parts[1:])


def _find_input(names: list[str]) -> int:
    """Index of the argument whose bytes members compare: the inputs, or the tensors that are both."""
    for index, name in enumerate(names):
        if "input" in name and "split" not in name:
            return index
    return next((index for index, name in enumerate(names) if name in ("tensors", "tensor")), -1)
