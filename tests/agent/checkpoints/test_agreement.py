"""Agents that agree upon a checkpoint, over a store in this process, with slots and sockets that are real."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from agent.checkpoints.agreed import AgreedCheckpoint, ReplicaSource
from agent.checkpoints.holder import CheckpointHolder, OutdatedMeetingError
from agent.connection.listener import Listener
from agent.environment import Environment, InvalidEnvironmentError
from agent.monitor.oom import OomWatch
from agent.rendezvous.agreement import CheckpointAgreement
from agent.slots.format import CONTROL_BYTES, Mark, TensorPart, lay_out
from agent.slots.process_files import Notice, ProcessFile, StoragePlace
from agent.slots.resume import Checkpoint, Inventory, ResumeDecision
from agent.slots.slot import Slot
from crds.agent_report import Resumed
from crds.checkpoint_files import Tier
from tests.agent.patience import wait_for

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patient")]

HEADER = lay_out([TensorPart("weights", "int64", (512,), 4096)])


def environment(index: int = 0, size: int = 1 << 20, replicas: int = 1) -> Environment:
    return Environment(
        "job", "default", f"w-{index}", index, 1, "uid", f"127.0.0.{index + 2}", memory_bytes=size,
        memory_replicas=replicas, termination_grace_seconds=600, persist_on_failure=True, key=bytes(range(32)),
    )  # fmt: skip


class World:
    def __init__(self, folder: Path, size: int, places: tuple[tuple[str, ...], ...] = ()) -> None:
        self._places = places
        self.folder = folder
        self.size = size
        self.memories: list[CheckpointHolder | None] = []
        self._cleanup = ExitStack()
        for index in range(size):
            self.memories.append(None)
            self.replace(index)

    def replace(self, index: int) -> None:
        """That agent's Pod is lost, and another one has come."""
        place = self._places[index] if self._places else ()
        me = environment(index)
        listener = Listener(me.pod_ip, me.key)
        self._cleanup.callback(listener.close)
        memory = CheckpointHolder(me, 1, listener, lambda: place)
        self._cleanup.callback(memory.close)
        self.memories[index] = memory

    def meet(self, round_: int) -> list[dict[str, Any]]:
        """A round begins: what each process is told."""
        store = HashStore()
        threads = [
            threading.Thread(target=self._meet, args=(store, round_, agent)) for agent in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive(), "the agents do not agree"
        return [self._told(agent) for agent in range(self.size)]

    def _meet(self, store: Store, round_: int, agent: int) -> None:
        def wait(store: Store, keys: list[str]) -> None:
            store.wait(keys, timedelta(seconds=300))

        memory = self.memories[agent]
        agreement = CheckpointAgreement(store, round_, agent, self.size, memory, wait, threading.Event())
        agreement.publish_inventory()
        if agent == 0:
            wait(store, [f"here/{each}" for each in range(self.size)])
            agreement.lead()
        else:
            agreement.follow()

    def _told(self, agent: int) -> dict[str, Any]:
        memory = self.memories[agent]
        if memory is None:
            return {}
        directory = self.folder / str(agent)
        directory.mkdir(exist_ok=True)
        (environ,) = memory.write_files(directory, [agent], 0.5)
        told: dict[str, Any] = json.loads(Path(environ["DLR_CHECKPOINT_FILE"]).read_text())
        return told

    def save(self, told: list[dict[str, Any]], step: int, turn: int) -> None:
        """Each process writes a checkpoint, and its replica is waited for."""
        self.write(told, step, turn)
        wait_for(lambda: all(m is None or m.to_status().replicated_step == step for m in self.memories))

    def write(self, told: list[dict[str, Any]], step: int, turn: int) -> None:
        """Each process writes a checkpoint."""
        for rank, file in enumerate(told):
            slot = Slot.open(file["slots"][turn])
            slot.begin()
            slot.tensor(HEADER.entries[0]).fill_(step)
            slot.commit(Mark(file["round"], step, rank, self.size), HEADER)
            slot.sum_up()

    def leave(self, step: int, gone: int) -> None:
        """All processes have left after that step, and the Pod of one agent goes: it is in no world any more."""
        for agent, memory in enumerate(self.memories):
            assert memory is not None
            memory.replicas.depart(step)
            if agent != gone:
                memory.expect(frozenset({gone}), after_failure=False)
        leaver = self.memories.pop(gone)
        assert leaver is not None
        self.size -= 1
        threading.Thread(
            target=lambda: (
                leaver.replicas.hand_over(300),
                leaver.close(),
                leaver.replicas._server._listener.close(),
            ),
            daemon=True,
        ).start()

    def close(self) -> None:
        self._cleanup.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path, 3)
    yield found
    found.close()


def steps(told: list[dict[str, Any]]) -> set[Any]:
    return {file["resume"] and file["resume"]["step"] for file in told}


def test_a_lost_agent_gets_its_slot_from_its_peer(world: World) -> None:
    told = world.meet(1)
    assert [file["resume"] for file in told] == [None] * 3
    world.save(told, 10, 0)
    world.save(told, 11, 1)
    world.replace(0)
    told = world.meet(2)
    assert steps(told) == {11}
    slot = Slot.open(told[0]["resume"]["slot"])
    slot.verify()
    assert slot.mark == Mark(1, 11, 0, 3)
    assert told[0]["resume"]["slot"] == told[0]["slots"][0]
    memory = world.memories[2]
    assert memory is not None
    assert memory.to_status().resumed is None, "its process may still fail to load it"
    loaded = {"round": 2, "loaded": 11, "tier": "memory"}
    Path(told[2]["notice_file"]).write_text(json.dumps(loaded))
    assert memory.to_status().resumed == Resumed(2, Tier.PEER, 11)
    Path(told[2]["notice_file"]).write_text(json.dumps(loaded | {"loaded": 20, "tier": "storage"}))
    assert memory.to_status().resumed == Resumed(2, Tier.STORAGE, 20), "that was newer"


def test_all_learn_that_processes_live_on_where_they_go_on_from_memory(world: World) -> None:
    def meet(round_: int, lives: int, *, no_newcomers: bool = False) -> set[bool]:
        first, *_, last = memories = [memory for memory in world.memories if memory is not None]
        first.lives, last.no_newcomers = lives, no_newcomers
        for memory in memories:
            memory.note_plan()  # else a checkpoint counts as the last resort in the third round with it
        world.meet(round_)
        return {memory.lives_on for memory in memories}

    world.save(world.meet(1), 10, 0)
    world.replace(1)
    assert meet(2, 1) == {True}, "a replacement fetches its part, and joins"
    assert meet(3, 1, no_newcomers=True) == {False}
    elsewhere = next(memory for memory in world.memories if memory is not None)
    elsewhere.bound_to = (0, 99)
    assert meet(4, 1) == {False}, "they are bound to a world of another size"


def test_a_replica_that_is_damaged_leads_to_the_older_checkpoint(world: World) -> None:
    told = world.meet(1)
    world.save(told, 10, 0)
    world.save(told, 11, 1)
    holder = world.memories[1]  # half a world from agent 0
    assert holder is not None
    replica = next(s for s, mark in holder._pool.with_sums() if (mark.rank, mark.step) == (0, 11))
    replica.bytes(CONTROL_BYTES + 5, CONTROL_BYTES + 6)[0] ^= 1
    world.replace(0)
    told = world.meet(2)
    assert steps(told) == {10}
    assert all(Slot.open(file["resume"]["slot"]).mark == Mark(1, 10, r, 3) for r, file in enumerate(told))
    for memory in world.memories:
        assert memory is not None
        assert all(mark.step <= 10 for _, mark in memory._pool.with_sums()), "what is newer is forgotten"


def test_what_a_failed_fetch_has_written_over_is_counted_on_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = world.meet(1)
    world.save(told, 10, 0)
    holder, memory = world.memories[1], world.memories[0]
    assert holder is not None and memory is not None
    replica = next(s for s, mark in holder._pool.with_sums() if (mark.rank, mark.step) == (0, 10))
    for slot, mark in memory._pool.with_sums():
        if mark.rank == 0:
            slot.damaged()
    said = []
    decode = Inventory.decode

    def heard(text: str) -> Inventory | None:
        said.append(text)
        return decode(text)

    monkeypatch.setattr(Inventory, "decode", heard)
    free = [slot for slot in memory._pool.slots if slot.mark is None]
    for step, slot in enumerate(free):  # the next slot to be written into holds an older step of another rank
        slot.begin()
        slot.tensor(HEADER.entries[0]).fill_(step)
        slot.commit(Mark(1, step, 1, 3), HEADER)
        slot.sum_up()
    replica.bytes(CONTROL_BYTES + 5, CONTROL_BYTES + 6)[0] ^= 1
    assert [file["resume"] for file in world.meet(2)] == [None] * 3
    counts = [
        len(found.held)
        for text in said
        if (found := decode(text)) and found.address == memory.replicas.address
    ]
    assert min(counts) < max(counts), "the agent said anew what it holds"


def test_an_offer_is_taken_from_the_agent_whose_peer_this_is_alone(world: World) -> None:
    world.save(world.meet(1), 10, 0)
    memory, stranger = world.memories[1], world.memories[2]
    assert memory is not None and stranger is not None
    assert memory.replicas.agreed.source == ReplicaSource(0, world.memories[0].replicas.address, 1)  # type: ignore[union-attr]
    assert not memory.replicas.take(Mark(1, 10, 2, 3), stranger.replicas.address)
    assert all(mark.rank != 2 for _, mark in memory._pool.with_sums())


def test_after_a_failure_the_processes_of_a_smaller_world_persist_each_old_rank_s_slot(world: World) -> None:
    told = world.meet(1)
    world.save(told, 10, 0)
    lost = world.memories.pop()
    assert lost is not None
    world.size = 2
    for memory in world.memories:
        assert memory is not None
        memory.expect(frozenset({2}), after_failure=True)
    resumed = [file["resume"] for file in world.meet(2)]
    assert [(of["step"], of["world_size"]) for of in resumed] == [(10, 3)] * 2
    persisted = [(int(rank), path) for of in resumed for rank, path in of["persist"].items()]
    assert [(rank, Slot.open(path).mark) for rank, path in sorted(persisted)] == [
        (rank, Mark(1, 10, rank, 3)) for rank in range(3)
    ]


def test_an_agent_and_its_peer_that_are_lost_lead_to_storage_and_who_is_left_says_what_is_lost(
    world: World,
) -> None:
    first = world.meet(1)
    world.save(first, 10, 0)
    world.replace(0)
    world.replace(1)
    found = world.meet(2)
    assert [file["resume"] for file in found] == [None] * 3
    assert [file["lost_step"] for file in found] == [None, None, 10]
    assert {file["lost_step"] for file in [*first, *world.meet(3)]} == {None}


def test_a_pod_that_leaves_hands_its_last_step_to_its_peer_and_the_others_wait_for_it(world: World) -> None:
    told = world.meet(1)
    world.save(told, 10, 0)
    world.write(told, 11, 1)
    world.leave(11, gone=0)
    told = world.meet(2)
    assert steps(told) == {11}
    assert {file["resume"]["world_size"] for file in told} == {3}
    assert all(set(file["resume"]["shards"]) == {"0", "1", "2"} for file in told)


def test_agents_that_end_in_a_recovery_say_all_that_is_left_and_who_is_lost(world: World) -> None:
    told = world.meet(1)
    world.save(told, 10, 0)
    place = StoragePlace("/data", "default/job", 3, "")
    lost, holder, other = world.memories
    assert lost is not None and holder is not None and other is not None
    assert holder.last_save(None, 5.0) is None, "no process has said where it saves"
    for file in told:
        Notice(ProcessFile(notice_file=file["notice_file"])).tell_storage(place)
    lost.replicas._server._listener.close()
    lost.close()
    for memory in (holder, other):
        memory.inventory(2)  # the next round was being joined
        assert memory.to_status().step == 10
        assert memory.last_save(10, 5.0) is None, "storage has it"
    saves = [save for memory in (holder, other) if (save := memory.last_save(9, 5.0)) is not None]
    assert [(save.agent, save.agents, save.gone) for save in saves] == [(1, 3, (0,)), (2, 3, ())]
    assert len({save.name for save in saves}) == 1 and {save.storage for save in saves} == {place}
    held = {Mark(*mark) for save in saves for *mark, _ in save.slots}
    assert held == {Mark(1, 10, rank, 3) for rank in range(3)}
    assert {Slot.open(path).mark for save in saves for *_, path in save.slots} == held
    assert not holder.replicas.take(Mark(1, 11, 0, 3), lost.replicas.address), (
        "nothing is written over any more"
    )


def test_the_thread_of_an_abandoned_meeting_acts_no_more(world: World) -> None:
    world.save(world.meet(1), 10, 0)
    memory = world.memories[0]
    assert memory is not None
    checkpoint = Checkpoint(1, 10, 3)
    memory.inventory(2)
    memory.inventory(3)
    memory.agree(AgreedCheckpoint(3, ResumeDecision(checkpoint)))
    for late in (
        lambda: memory.inventory(2),
        lambda: memory.fetch(2, checkpoint, 1, "127.0.0.1:1", threading.Event()),
        lambda: memory.agree(AgreedCheckpoint(2)),
    ):
        with pytest.raises(OutdatedMeetingError):
            late()
    assert memory.inventory(3).held[checkpoint] >= {0}


def test_a_checkpoint_that_leads_nowhere_gives_way_to_any_other_and_is_not_given_up_without_one(
    world: World,
) -> None:
    told = world.meet(1)
    world.save(told, 10, 0)
    world.save(told, 11, 1)
    found = []
    for round_ in range(2, 9):
        found.append(world.meet(round_))
        if round_ == 2:  # it ends by plan: Pods come one by one, while processes still import torch
            for memory in world.memories:
                assert memory is not None
                memory.note_plan()
    assert [steps(each) for each in found] == [{11}, {11}, {11}, {10}, {10}, {10}, {10}]
    resorts = [{file["resume"]["is_last_resort"] for file in each} for each in found]
    assert resorts == [{False}] * 5 + [{True}] * 2, "storage goes first, if it has any"


def test_a_pod_that_goes_does_not_wait_for_a_copy_of_what_its_processes_did_not_save(world: World) -> None:
    world.save(world.meet(1), 10, 0)
    memory = world.memories[1]
    assert memory is not None
    memory.replicas.depart(11)
    began_at = time.monotonic()
    memory.replicas.hand_over(600)
    assert time.monotonic() - began_at < 300


def test_slots_that_have_no_room_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OomWatch, "limit_bytes", lambda _: 1 << 20)
    listener = Listener("127.0.0.1", bytes(32))
    with pytest.raises(
        InvalidEnvironmentError, match="does not fit into the container's memory limit of 1 M"
    ):
        CheckpointHolder(environment(size=1 << 20), 1, listener)
    with pytest.raises(InvalidEnvironmentError, match="too little for 40 slots"):
        CheckpointHolder(environment(size=1 << 20), 8, listener)
    listener.close()
