"""Process groups that are formed again in living processes, when other processes replace dead ones.

torch has this as an experiment from 2.14 on, for gloo and for nccl2: a backend in its "reconfigure regime"
connects whenever it gets a number and the handles of all ranks. So each group that the script has created by
torch's API gets such a backend beside its own, at the first step that may be survived. DDP, FSDP, a
DeviceMesh, or functional collectives by name go on with the same group.

A collective in gloo that waits for a living peer is woken neither by `abort` nor by `shutdown`, but by the
end of a connection: `GroupConnections` closes those of the groups.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    DistStoreError,
    PrefixStore,
    Store,
    TCPStore,
    distributed_c10d,
)

from agent.facts.place import Place
from agent.torch_compat.group_connections import GroupConnections

logger = logging.getLogger(__name__)

_c10d: Any = distributed_c10d
"""The same module, untyped, for names that only newer versions have."""

FORM_SECONDS = 20.0
"""Time limit for the ranks of one group to connect, once all are there."""
AGREE_SECONDS = timedelta(seconds=30)
"""Time limit for all processes of a round to reach their first step; after it none of them lives on."""
DECISION, YES, NO = "decision", "yes", "no"
ALL_RANKS = "all-ranks"
"""Key of a round: the names of the groups that have all ranks."""
_BACKENDS = {"cpu": "gloo", "cuda": "nccl2"}
"""Reconfigurable backends, by type of device."""
_REPLACED = {"gloo": "gloo", "nccl": "nccl2", "nccl2": "nccl2"}
"""Reconfigurable backend for each of torch's backends."""

AwaitAll = Callable[[Store, str, int], None]
"""Waits until a key of a store has been increased to this number; raises if the wait has to end."""


class UnsupportedGroupError(RuntimeError):
    """A group of the script cannot be formed again in its processes."""


class RoundStore(Store):
    """The store of the newest round, for groups that outlive rounds. C++ calls these methods.

    torch can call the methods of a store in Python only as long as there is a reference to it.

    Args:
        connections: gets the values that are set and read, to find the groups' connections.
    """

    def __init__(self, connections: GroupConnections) -> None:
        super().__init__()
        self._store: Any = None
        self._connections = connections

    def switch(self, store: Store) -> None:
        """Switch to the store of another round."""
        self._store = store

    @property
    def _current(self) -> Any:
        if self._store is None:
            raise RuntimeError("no round has begun")
        return self._store

    def set(self, key: str, value: Any) -> None:
        self._connections.note(value.encode() if isinstance(value, str) else bytes(value))
        self._current.set(key, value)

    def get(self, key: str) -> bytes:
        value = cast(bytes, self._current.get(key))
        self._connections.note(value)
        return value

    def add(self, key: str, amount: int) -> int:
        return cast(int, self._current.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        return cast(bool, self._current.check(keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        if timeout is None:
            self._current.wait(keys)
        else:
            self._current.wait(keys, timeout)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return cast(bytes, self._current.compare_set(key, expected, desired))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        values = cast(list[bytes], self._current.multi_get(keys))
        for value in values:
            self._connections.note(value)
        return values

    def multi_set(self, keys: list[str], values: Any) -> None:
        self._current.multi_set(keys, values)

    def delete_key(self, key: str) -> bool:
        return cast(bool, self._current.delete_key(key))


@dataclass(frozen=True)
class FormedGroup:
    """A group of the script, with its reconfigurable backend."""

    name: str
    kind: str
    """Kind of the backend: gloo or nccl2."""
    ranks: tuple[int, ...] | None
    """Ranks of the group; None for all ranks of a world of any size."""
    backend: Any

    def place_in(self, world: Place) -> Place:
        """Return the rank of this process in the group, and the group's size."""
        return world if self.ranks is None else Place(self.ranks.index(world.rank), len(self.ranks))

    def key(self, rank: int) -> str:
        """Return the key of the handle of a rank of the group."""
        return f"{self.name}/{rank}"

    @property
    def count_key(self) -> str:
        """Key of the number of ranks that have set their handles."""
        return f"{self.name}/count"


class ReformableGroups:
    """The process groups of this process that are formed again in each round."""

    def __init__(self) -> None:
        self._connections = GroupConnections()
        self._store = RoundStore(self._connections)
        self._groups: dict[Any, list[FormedGroup]] = {}
        """Backends by torch's group, in the order of their creation."""

    def are_supported(self, round_: int, store: Store) -> bool:
        """Agree with all other processes of a round whether the groups of each can be formed again.

        If a process does not answer, since it has no agent for it, or another torch, they agree on no.

        Args:
            store: the round's store.
        """
        world = distributed_c10d._world
        keys: Any = PrefixStore(f"dlr-survivors/{round_}/", store)
        try:
            for group in world.pg_map:
                _kinds_of(group, world.pg_names[group])
        except UnsupportedGroupError as error:
            logger.warning("%s", error)
            keys.compare_set(DECISION, "", NO)
        else:
            if keys.add("able", 1) == dist.get_world_size():
                keys.compare_set(DECISION, "", YES)
        try:
            keys.wait([DECISION], AGREE_SECONDS)
        except DistStoreError:
            keys.compare_set(DECISION, "", NO)  # unless another process has decided meanwhile
        is_agreed = bool(keys.get(DECISION) == YES.encode())
        if not is_agreed:
            logger.warning("a failure starts all processes again: not all of this world can live on")
        return is_agreed

    def adopt(self) -> None:
        """Give each group of this process a reconfigurable backend.

        Raises:
            UnsupportedGroupError: a group, which it names, cannot have one. All groups are unchanged.
        """
        world = distributed_c10d._world
        kinds = {group: _kinds_of(group, world.pg_names[group]) for group in world.pg_map}
        for group, by_device in kinds.items():
            name, (backend, _) = world.pg_names[group], world.pg_map[group]
            self._groups[group] = list(self._backends_of(group, name, by_device))
            world.pg_map[group] = backend, PrefixStore(f"{name}/", self._store)

    def refuse_later_ones(self) -> None:
        """Check that no group was created since `adopt`.

        Raises:
            UnsupportedGroupError: a group was, and a newcomer would not have it; the message names it.
        """
        world = distributed_c10d._world
        for group in world.pg_map:
            if group not in self._groups:
                raise UnsupportedGroupError(
                    f"the process group {world.pg_names[group]!r} was made in the loop over steps, where a "
                    "process that joins later has none: a failure starts all processes again; make all "
                    "groups before the loop"
                )

    def _backends_of(self, group: Any, name: str, kinds: Mapping[Any, str]) -> Iterator[FormedGroup]:
        made: dict[str, Any] = {}
        for device, kind in kinds.items():
            if kind not in made:
                timeout = group._get_backend(device).options._timeout
                made[kind] = self._make(kind, group, f"{name}/{kind}", timeout)
                ranks = tuple(dist.get_process_group_ranks(group))
                is_whole = ranks == tuple(range(dist.get_world_size()))
                yield FormedGroup(f"{name}/{kind}", kind, None if is_whole else ranks, made[kind])
            # torch keeps one backend of each type, and uses this type for no other
            group._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, made[kind])
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def _make(self, kind: str, group: Any, name: str, timeout: timedelta) -> Any:
        options = _c10d._DistributedBackendOptions()
        options.store = PrefixStore(f"{name}/", self._store)
        options.group_rank, options.group_size = group.rank(), group.size()
        options.timeout = timeout
        options.group_id = name
        options.global_ranks_in_group = dist.get_process_group_ranks(group)
        options.process_group = group
        options.enable_reconfigure = True
        plugin = distributed_c10d.Backend._plugins[kind.upper()]
        return plugin.creator_fn(options, None)

    def bound_to_size(self) -> str | None:
        """Return the reason why the groups fit only one size of the world; None if they fit any."""
        if dist.get_world_size() == 1:
            return "this process began alone, where scripts make no groups"
        names = (each.name for of in self._groups.values() for each in of if each.ranks is not None)
        return next((f"the process group {name!r} has not all ranks" for name in names), None)

    def form(self, round_: int, store: Store, place: Place, await_all: AwaitAll) -> None:
        """Connect all groups for a round. All its processes call it.

        Args:
            store: the round's store.
            place: place of this process in the round, for the groups of all ranks.

        Raises:
            UnsupportedGroupError: other processes have created other groups.
            RuntimeError: a rank did not come in time, or has ended meanwhile.
        """
        groups = [each for backends in self._groups.values() for each in backends]
        keys: Any = PrefixStore(f"dlr-reconfigure/{round_}/", store)
        self._store.switch(PrefixStore(f"dlr-groups/{round_}/", store))
        self._refuse_others(keys)
        with self._connections.formed():
            if groups:
                handles = [each.backend.get_reconfigure_handle() for each in groups]
                keys.multi_set([each.key(each.place_in(place).rank) for each in groups], handles)
                for each in groups:
                    keys.add(each.count_key, 1)
            for each in groups:
                self._form(each, round_, each.place_in(place).world_size, keys, await_all)
        self._note_ranks(place.world_size)

    def _refuse_others(self, keys: Any) -> None:
        """Check that all processes have the same groups of all ranks: else they would wait for ever."""
        names = json.dumps([each.name for of in self._groups.values() for each in of if each.ranks is None])
        if (others := keys.compare_set(ALL_RANKS, "", names).decode()) != names:
            raise UnsupportedGroupError(
                f"this process has made the process groups {names} of all ranks, and another {others}: make "
                "the same in a world of any size, or leave out `resizable`"
            )

    def _note_ranks(self, world_size: int) -> None:
        """Update torch's list of the ranks of groups whose size has changed."""
        for group, backends in self._groups.items():
            if all(each.ranks is None for each in backends):
                distributed_c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}

    @staticmethod
    def _form(group: FormedGroup, round_: int, size: int, keys: Any, await_all: AwaitAll) -> None:
        await_all(keys, group.count_key, size)
        options = _c10d.ReconfigureOptions()
        options.uuid = round_
        options.handles = [handle.decode() for handle in keys.multi_get([group.key(r) for r in range(size)])]
        options.timeout = timedelta(seconds=FORM_SECONDS)
        group.backend.reconfigure(options).wait()

    def break_off(self) -> None:
        """Make all waiting collectives of these groups fail. Any thread may call it."""
        self._connections.close()
        for backends in self._groups.values():
            for each in backends:
                if each.kind == "nccl2":
                    each.backend.abort()


def _kinds_of(group: Any, name: str) -> dict[Any, str]:
    """Return the reconfigurable backends of a group, by device.

    Raises:
        UnsupportedGroupError: a backend has no reconfigurable one.
    """
    kinds = {}
    for device in sorted(group._device_types, key=str):
        if device.type not in _BACKENDS or (device.type == "cuda" and not torch.cuda.is_available()):
            continue
        present = group._get_backend(device).name()
        if present not in _REPLACED:
            raise UnsupportedGroupError(
                f"the process group {name!r} has the backend {present} for {device.type}, which cannot "
                "be formed again in its processes: a failure starts all processes again; use gloo or "
                "nccl, or leave out `with step`"
            )
        kinds[device] = _REPLACED[present]
    return kinds


def round_store(environ: Mapping[str, str]) -> Store:
    """Connect to the training processes' store of the round in the environment.

    Raises:
        RuntimeError: the store cannot be reached.
    """
    return cast(
        Store,
        TCPStore(
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=FORM_SECONDS),
        ),
    )
