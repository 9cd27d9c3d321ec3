"""A training script that lives on, with nothing but the socket and the slots.

The processes of one agent make their steps together, by files. Each writes a line for each round that it is in into OUT/rounds: `ROUND LOCAL_RANK PID STEP [WORDS…]`.
"""

from __future__ import annotations

import json
import os
import select
import socket
from pathlib import Path

import torch

import dlr
from agent.slots.format import Mark, TensorPart, lay_out
from agent.slots.slot import Slot
from agent.survival.messages import (
    MAX_FROM_AGENT,
    Enters,
    FromAgent,
    FromProcess,
    Leave,
    Left,
    NextRound,
    encode,
    read_from_agent,
)
from agent.warm.warm_parent import ROUND_VARIABLES

HEADER = lay_out([TensorPart("weights", "int64", (1024,), 8192)])
OUT = Path(os.environ["OUT"])


class AgentSocket:
    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(os.environ["DLR_WORLD_SOCKET"])

    def say(self, message: FromProcess) -> None:
        self._socket.send(encode(message))

    def hear(self, seconds: float | None) -> FromAgent | None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(None if seconds is None else seconds * 1000):
            return None
        data, descriptors, _, _ = socket.recv_fds(self._socket, MAX_FROM_AGENT, 2)
        if not data:
            raise SystemExit("the agent is gone")
        message = read_from_agent(data)
        if isinstance(message, NextRound):
            take(message, descriptors)
        return message


def take(message: NextRound, descriptors: list[int]) -> None:
    for name in [name for name in os.environ if name.startswith(ROUND_VARIABLES)]:
        del os.environ[name]
    os.environ.update(message.env)
    for number, descriptor in zip(message.redirects, descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


class Training:
    """What a round has given this process, and how far it is."""

    def __init__(self) -> None:
        self.round, self.rank = int(os.environ["DLR_ROUND"]), int(os.environ["RANK"])
        given = json.loads(Path(os.environ["DLR_CHECKPOINT_FILE"]).read_text())
        assert given["round"] == self.round
        self.slots = [Slot.open(path) for path in given["slots"]]
        self.step = given["resume"]["step"] if given["resume"] else 0
        self.tell_step()

    def make_step(self) -> None:
        self.step += 1
        slot = self.slots[self.step % len(self.slots)]
        slot.begin()
        slot.tensor(HEADER.entries[0]).copy_(torch.full((1024,), self.step))
        slot.commit(Mark(self.round, self.step, self.rank, int(os.environ["WORLD_SIZE"])), HEADER)
        slot.sum_up()
        dlr.report(self.step)
        self.tell_step()

    def tell_step(self) -> None:
        file = OUT / f"at.{self.round}.{os.environ['LOCAL_RANK']}"
        file.with_name(f"{file.name}.new").write_text(str(self.step))
        file.with_name(f"{file.name}.new").rename(file)

    def all_are_here(self) -> bool:
        ranks = range(int(os.environ["LOCAL_WORLD_SIZE"]))
        try:
            return all(int((OUT / f"at.{self.round}.{rank}").read_text()) >= self.step for rank in ranks)
        except FileNotFoundError:
            return False


def note(training: Training, *words: str) -> None:
    line = (training.round, os.environ["LOCAL_RANK"], os.getpid(), training.step, *words)
    with (OUT / "rounds").open("a") as file:
        file.write(" ".join(map(str, line)) + "\n")
    print("round", training.round, flush=True)


def main() -> None:
    local_rank, words = int(os.environ["LOCAL_RANK"]), ["newcomer"] if "DLR_JOINS" in os.environ else []
    agent, is_spare = AgentSocket(), "DLR_SPARE" in os.environ
    agent.say(Enters())
    if is_spare:
        (OUT / f"spare.{local_rank}.{os.getpid()}").touch()
        agent.hear(None)
        words = ["spare"]
    training = Training()
    note(training, *words)
    while True:
        if training.all_are_here():
            training.make_step()
        if isinstance(agent.hear(0.02), Leave):
            agent.say(Left(training.round))
            agent.hear(None)
            training = Training()
            note(training, "lives")


if __name__ == "__main__":
    main()
