"""The agent's side of the socket, over real sockets; each test's own process is the training process."""

from __future__ import annotations

import os
import resource
import select
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.survival import desk as desk_module
from agent.survival.desk import WorldDesk
from agent.survival.messages import (
    MAX_FROM_AGENT,
    Enters,
    FromProcess,
    Leave,
    Left,
    Lost,
    NextRound,
    Unable,
    encode,
    read_from_agent,
)
from tests.agent.patience import SECONDS, wait_for

pytestmark = pytest.mark.real

ME = os.getpid()
ENTERS = Enters()


@pytest.fixture
def desk() -> Iterator[WorldDesk]:
    made = WorldDesk()
    made.expect([ME], 4)
    yield made
    made.close()


class Process:
    def __init__(self, desk: WorldDesk) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(SECONDS)
        self.socket.connect(desk.path)

    def say(self, *messages: FromProcess | bytes) -> None:
        for message in messages:
            self.socket.send(message if isinstance(message, bytes) else encode(message))

    def hear(self) -> tuple[object, list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self.socket, MAX_FROM_AGENT, 2)
        return read_from_agent(data), descriptors

    def is_cut_off(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:  # what it said was not even read
            return True


def entered(desk: WorldDesk) -> Process:
    process = Process(desk)
    process.say(ENTERS)
    desk.look()
    assert desk.words(ME).lives_on
    return process


def test_the_socket_is_its_users_alone_and_goes_with_the_desk() -> None:
    desk = WorldDesk()
    folder = Path(desk.path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    desk.close()
    assert not folder.exists()


def test_a_look_takes_what_has_come_and_waits_for_nothing(desk: WorldDesk) -> None:
    desk.look()
    assert not desk.words(ME).entered
    process = entered(desk)
    assert desk.leave(ME, 4)
    assert process.hear() == (Leave(4), [])
    process.say(Left(4))
    poll = select.poll()
    for descriptor in desk.fds():
        poll.register(descriptor, select.POLLIN)
    assert poll.poll(SECONDS * 1000)
    desk.look()
    words = desk.words(ME)
    assert (words.left, words.lost) == (4, None)
    process.say(Lost(4, "Connection closed by peer"))
    desk.look()
    assert desk.words(ME).lost == Lost(4, "Connection closed by peer") and desk.words(ME).left == 4
    process.say(Unable("symmetric memory"))
    desk.look()
    assert not desk.words(ME).lives_on


def test_a_round_comes_with_its_logs_at_once_or_when_the_loop_begins(desk: WorldDesk, tmp_path: Path) -> None:
    log = (tmp_path / "log").open("wb")
    early, late = {"RANK": "1", "DLR_ROUND": "5"}, {"RANK": "2", "DLR_ROUND": "6"}
    assert desk.hand_over(ME, early, {2: log.fileno()})
    process = entered(desk)
    message, (descriptor,) = process.hear()
    assert message == NextRound(early, (2,))
    os.write(descriptor, b"a line")
    assert (tmp_path / "log").read_bytes() == b"a line"
    process.say(Lost(4, "gone"))
    desk.look()
    assert desk.hand_over(ME, late, {})
    assert process.hear() == (NextRound(late), [])
    assert desk.words(ME).lost is None
    os.close(descriptor)
    log.close()


def test_a_process_that_ends_once_its_loop_has_begun_gets_no_round(desk: WorldDesk, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        assert desk.hand_over(ME, {"DLR_ROUND": "5"}, {2: log.fileno()})
    process = Process(desk)
    process.say(ENTERS)
    process.socket.close()
    desk.look()
    assert not desk.words(ME).lives_on
    assert tmp_path / "log" not in {each.resolve() for each in Path("/proc/self/fd").iterdir()}


def test_who_is_not_expected_is_turned_away_whatever_it_says(desk: WorldDesk) -> None:
    desk.expect([ME + 1])
    process = Process(desk)
    process.say(ENTERS)
    desk.look()
    assert not desk.words(ME + 1).entered
    assert process.is_cut_off()


def test_a_second_connection_of_a_process_is_turned_away(desk: WorldDesk) -> None:
    first, second = entered(desk), Process(desk)
    desk.look()
    assert second.is_cut_off()
    first.say(Left(4))
    desk.look()
    assert desk.words(ME).left == 4


@pytest.mark.parametrize(
    "messages",
    [
        [b'{"left": "four"}'],
        [b"x" * 100_000],
        [encode(Left(4))] * (desk_module.MAX_MESSAGES + 1),
    ],
    ids=["no message", "too long", "too many"],
)
def test_what_makes_no_sense_ends_its_connection_and_nothing_else(
    desk: WorldDesk, messages: list[bytes]
) -> None:
    process = entered(desk)
    process.say(*messages)
    desk.look()
    assert not desk.words(ME).lives_on
    assert process.is_cut_off()
    assert not desk.leave(ME, 4) and not desk.hand_over(ME, {}, {})
    desk.expect([])
    desk.expect([ME])
    entered(desk)


def test_a_process_that_is_gone_or_reads_nothing_cannot_be_handed_a_round(desk: WorldDesk) -> None:
    entered(desk).socket.close()
    desk.look()
    assert not desk.words(ME).lives_on
    desk.expect([])
    desk.expect([ME])
    deaf = entered(desk)
    env = {"DLR_ROUND": "5", "LONG": "a" * 60_000}
    wait_for(lambda: not desk.hand_over(ME, env, {}), "a full socket")
    assert not desk.words(ME).lives_on
    deaf.socket.close()


def test_who_cannot_be_taken_for_want_of_descriptors_wakes_nobody_meanwhile(desk: WorldDesk) -> None:
    process, (soft, hard) = Process(desk), resource.getrlimit(resource.RLIMIT_NOFILE)
    process.say(ENTERS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        desk.look()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert desk.fds() == [] and not desk.words(ME).entered
    desk.look()
    assert len(desk.fds()) == 2 and desk.words(ME).lives_on
