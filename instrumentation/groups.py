"""Process groups of this rank: finds every existing and future one, and gives each a row of the ring.

All ways of creating a group (init_process_group, new_group, DeviceMesh, split_group, torch 2.6 to 2.15) end in
``distributed_c10d._register_process_group``, which is therefore the one place that is wrapped. Torch fills in the
member list only after that call, so a group is hooked at once and defined as soon as its members are known: at its
first operation or at the next heartbeat. Holds no strong reference to a group: that would keep its threads alive.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..telemetry.ring_layout import format_ranks
from ..telemetry.vocabulary import HOST_BACKENDS, is_device_backend
from .ring_writer import RankRecorder

#: Groups of this process so far, by backend; of the process, because backends number theirs for its whole life.
_created: dict[str, int] = {}


class RankGroup:
    """One process group that this rank belongs to. ``row`` is -1 until defined, and for ever if no row is left."""

    __slots__ = (
        "__weakref__",
        "backend",
        "blind",
        "cpu_on_host",
        "defined",
        "gone",
        "members",
        "name",
        "on_cpu",
        "orders",
        "pg",
        "row",
    )

    def __init__(self, pg: weakref.ref[Any], name: str) -> None:
        self.pg = pg
        self.name = name
        self.row = -1
        self.defined = False
        self.blind = False
        self.gone = False
        self.members: tuple[int, ...] = ()
        self.backend = ""
        #: Whether every backend of the group ends its operations on the host (their Work can be polled and held).
        self.on_cpu = False
        #: Whether that holds for the backend of CPU tensors, in a group that has others for other devices.
        self.cpu_on_host = True
        #: By backend: how many groups of this process had it before. The flight recorder numbers groups like that.
        self.orders: dict[str, int] = {}


class GroupRegistry:
    """Keeps the groups by identity of the ProcessGroup object; ``on_new`` hooks each once, ``on_gone`` forgets it."""

    def __init__(
        self,
        writer: RankRecorder,
        on_new: Callable[[Any, RankGroup], None],
        on_gone: Callable[[RankGroup], None] = lambda group: None,
    ) -> None:
        self._writer = writer
        self._on_new = on_new
        self._on_gone = on_gone
        self._lock = threading.RLock()
        self._by_id: dict[int, RankGroup] = {}
        #: Groups with a row by id of their ProcessGroup, which is alive as long as its entry: hooks look here first.
        self.recorded: dict[int, RankGroup] = {}
        self._undefined: list[RankGroup] = []
        self._seen: dict[tuple[str, tuple[int, ...]], int] = {}
        self._c10d: Any = None
        self.errors = 0

    # --- installation -----------------------------------------------------------------------------------------------
    def install(self) -> None:
        """Wrap the registration functions of distributed_c10d and take in the groups that exist already."""
        c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
        self._c10d = c10d
        registry = self
        register = c10d._register_process_group
        unregister = c10d._unregister_process_group
        unregister_all = c10d._unregister_all_process_groups

        def _register_process_group(name: str, pg: Any) -> Any:
            result = register(name, pg)
            registry.add(pg, name)
            return result

        def _unregister_process_group(name: str) -> Any:
            registry.drop(name)
            return unregister(name)

        def _unregister_all_process_groups() -> Any:
            registry.drop_all()
            return unregister_all()

        c10d._register_process_group = _register_process_group
        c10d._unregister_process_group = _unregister_process_group
        c10d._unregister_all_process_groups = _unregister_all_process_groups
        self._originals = (register, unregister, unregister_all)
        for pg in list(c10d._world.pg_map):
            self.add(pg, c10d._world.pg_names.get(pg, ""))
        self.define_waiting()

    def uninstall(self) -> None:
        """Take the wrappers out again (tests). Hooks on groups stay: unregistering them is not safe."""
        if self._c10d is not None:
            (
                self._c10d._register_process_group,
                self._c10d._unregister_process_group,
                self._c10d._unregister_all_process_groups,
            ) = self._originals
            self._c10d = None

    # --- life of a group --------------------------------------------------------------------------------------------
    def add(self, pg: Any, name: str) -> None:
        """Takes in a group that is new, hooks it, and defines it if its members are known. Never raises.

        A group of one gets no row: it never waits. (Edge towards the user's call that created the group.)
        """
        try:
            with self._lock:
                known = self._by_id.get(id(pg))
                if known is not None and known.pg() is pg and not known.gone:
                    return
                group = RankGroup(weakref.ref(pg, self._make_forget(id(pg))), str(name))
                for backend in _backends_of(self._c10d, pg):
                    group.orders[backend] = _created.get(backend, 0)
                    _created[backend] = group.orders[backend] + 1
                self._by_id[id(pg)] = group
                if pg.size() < 2 and str(getattr(pg, "group_desc", "")) != "default_pg" and self._has_default():
                    # A group of one never waits; mesh dimensions of size 1 would use up the rows.
                    group.defined = group.blind = True
                    return
                self._undefined.append(group)
            self._on_new(pg, group)
        except Exception:
            self.errors += 1

    def _make_forget(self, key: int) -> Callable[[weakref.ref[Any]], None]:
        """What runs when a ProcessGroup dies: from then on its id may be another's."""
        recorded = self.recorded

        def forget(pg: weakref.ref[Any]) -> None:
            group = recorded.get(key)
            if group is not None and group.pg is pg:
                del recorded[key]

        return forget

    def drop(self, name: str) -> None:
        """Treats the group of this name as destroyed: its row is marked, and ``on_gone`` called."""
        with self._lock:
            for group in list(self._by_id.values()):
                if group.name == name and not group.gone:
                    self._drop_group(group)

    def drop_all(self) -> None:
        """Every group that is known is treated as destroyed, as at the end of the process."""
        with self._lock:
            for group in list(self._by_id.values()):
                self._drop_group(group)

    def _drop_group(self, group: RankGroup) -> None:
        group.gone = True
        pg = group.pg()
        if pg is not None and self.recorded.get(id(pg)) is group:
            del self.recorded[id(pg)]
        if group in self._undefined:
            self._undefined.remove(group)
        if group.row >= 0:
            self._writer.drop_group(group.row)
        self._on_gone(group)

    def find(self, pg: Any) -> RankGroup | None:
        """The group of a ProcessGroup object, taken in on the spot if it escaped registration.

        None if torch has none.
        """
        group = self._by_id.get(id(pg))
        if group is None or group.gone or group.pg() is not pg:
            name = self._c10d._world.pg_names.get(pg) if self._c10d is not None else None
            if name is None:
                return None
            self.add(pg, name)
            group = self._by_id.get(id(pg))
        return group

    def find_recorded(self, pg: Any) -> RankGroup | None:
        """The group of a ProcessGroup object if it has a row, after giving it one where that can be done now.

        Else None.
        """
        group = self.find(pg)
        return group if group is not None and self.define(group) and not group.blind else None

    def find_or_default(self, pg: Any) -> RankGroup | None:
        """As ``find``; for pg None the default group."""
        if pg is None and self._c10d is not None:
            pg = self._c10d._world.default_pg
        return None if pg is None else self.find(pg)

    def groups(self) -> list[RankGroup]:
        """Groups that are not destroyed and have a row."""
        with self._lock:
            return [group for group in self._by_id.values() if group.row >= 0 and not group.gone]

    def known(self) -> list[RankGroup]:
        """Every group ever seen whose object may still be alive.

        Without the lock: a forked child may find it held by a thread that it does not have.
        """
        return list(self._by_id.values())

    # --- definition -------------------------------------------------------------------------------------------------
    def define_waiting(self) -> None:
        """Defines every group whose members are known by now; cheap when none waits."""
        if self._undefined:
            for group in list(self._undefined):
                self.define(group)

    def define(self, group: RankGroup) -> bool:
        """Give the group its row if its members are known. True once it has been decided, also if decided blind."""
        if group.defined:
            return True
        with self._lock:
            if group.defined:
                return True
            pg = group.pg()
            if pg is None or group.gone or self._c10d is None:
                return False
            members = self._members_of(pg)
            if members is None:
                return False
            group.members = members
            group.backend = _backend_of(self._c10d, pg)
            group.on_cpu = not is_device_backend(group.backend)
            group.cpu_on_host = _cpu_backend_of(self._c10d, pg) in HOST_BACKENDS
            key = (group.name, members)
            ordinal = self._seen.get(key, 0)
            self._seen[key] = ordinal + 1
            default = self._is_default(pg)
            group.row = self._writer.define_group(
                {
                    "name": group.name,
                    "desc": str(getattr(pg, "group_desc", "") or ""),
                    "ranks": format_ranks(list(members)),
                    "size": len(members),
                    "backend": group.backend,
                    "ordinal": ordinal,
                    "timeout_s": _timeout_of(pg),
                    "default": default,
                }
            )
            group.blind = group.row < 0
            group.defined = True
            if not group.blind:
                self.recorded[id(pg)] = group
            if group in self._undefined:
                self._undefined.remove(group)
            return True

    def _members_of(self, pg: Any) -> tuple[int, ...] | None:
        ranks = self._c10d._world.pg_group_ranks.get(pg)
        if ranks:
            return tuple(sorted(ranks, key=ranks.__getitem__))
        if self._is_default(pg) or not self._has_default():
            return tuple(range(pg.size()))
        return None

    def _is_default(self, pg: Any) -> bool:
        return self._c10d._world.default_pg is pg

    def _has_default(self) -> bool:
        return self._c10d._world.default_pg is not None


def _backends_of(c10d: Any, pg: Any) -> list[str]:
    """Names of the group's backends, each once, in the order of its devices."""
    configuration = str(c10d._world.pg_backend_config.get(pg, "") or "")
    if not configuration:  # older releases fill it in after registering the group
        entry = c10d._world.pg_map.get(pg)
        configuration = str(entry[0]) if entry else ""
    return list(dict.fromkeys(part.rpartition(":")[2] for part in configuration.split(",") if part))


def _backend_of(c10d: Any, pg: Any) -> str:
    """One name ("gloo", "nccl"), or the map ("cpu:gloo,cuda:nccl") where devices have different backends."""
    backends = _backends_of(c10d, pg)
    return backends[0] if len(backends) == 1 else str(c10d._world.pg_backend_config.get(pg, ""))


def _cpu_backend_of(c10d: Any, pg: Any) -> str:
    """The backend that gets CPU tensors; gloo where the group has none for them."""
    parts = (part.partition(":") for part in str(c10d._world.pg_backend_config.get(pg, "") or "").split(","))
    return next((backend for device, _, backend in parts if device == "cpu"), "gloo")


def _timeout_of(pg: Any) -> float | None:
    """The group's own time-out in seconds; None where no backend tells."""
    for device in getattr(pg, "_device_types", ()) or ():
        try:
            timeout = pg._get_backend(device).options._timeout
            return float(timeout.total_seconds())
        except (RuntimeError, AttributeError, TypeError):
            continue
    return None
