"""Handshakes over a false network: bytes split anywhere and late, connections cut, sides that stall, strangers.

Clocks run differently. `play` names the invariants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count
from random import Random

import pytest

from agent.connection import admission as admitting
from agent.connection.admission import Admission
from agent.connection.handshake import (
    CONNECT_SECONDS,
    HANDSHAKE_SECONDS,
    NONCE_BYTES,
    PROOF_BYTES,
    RESPONSE_BYTES,
    SERVICE_BYTES,
    HandshakeClient,
    RefusedError,
    packed_address,
)
from tests.played.schedule import Schedule, play_seeds

pytestmark = pytest.mark.played

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
ADDRESS, OTHER_ADDRESS = packed_address(("10.0.0.1", 4711)), packed_address(("10.0.0.2", 4711))
EARLY, GREETING = b"sent right after the proof", b"the first word of the service"
MOST = 3
"""Unproven connections, so that a few strangers are too many."""
WEATHERS = (
    # delay of a part, share of parts that cut, share of looks that stall, longest stall, share of lost connects
    (0.005, 0.0, 0.0, 0.0, 0.0),
    (0.005, 0.0, 0.1, 3.0, 0.1),
    (0.4, 0.0, 0.0, 0.0, 0.1),
    (0.1, 0.05, 0.05, 12.0, 0.3),
)
EPSILON = 1e-6


class Host:
    """A machine with a clock of its own, which stands still at times."""

    def __init__(self, schedule: Schedule, stall: float, longest: float) -> None:
        self.schedule, self._stall, self._longest = schedule, stall, longest
        self._rate = schedule.random.choice((0.9, 1.0, 1.1))
        self._runs_at = 0.0

    def clock(self) -> float:
        return self.schedule.now * self._rate

    def when(self, clock: float) -> float:
        return clock / self._rate

    def act(self, name: str, act: Callable[[], object], due: float = 0.0) -> None:
        """Have it act as soon as it runs, after a moment at which it may be stopped."""
        schedule = self.schedule
        if self._stall and schedule.random.random() < self._stall:
            self._runs_at = max(self._runs_at, schedule.now + schedule.random.random() * self._longest)
        due = max(due, self._runs_at, schedule.now)
        if due > self._runs_at and due > schedule.now:
            schedule.at(due, name, lambda: self.act(name, act))
        elif due > schedule.now:
            schedule.at(due, name, act)
        else:
            schedule.soon(name, act)


class Pipe:
    """What one side of a connection has sent and the other has yet to read; None after it: the end."""

    def __init__(self, host: Host, wake: Callable[[], object]) -> None:
        self.host, self._wake = host, wake
        self.buffer = bytearray()
        self.other = self
        self.error: OSError | None = None
        self.has_ended = self.is_closed = False
        self._free_at = 0.0

    def send(self, data: bytes, delay: float, cut: float) -> None:
        """Send in parts, each of which is late, or is lost with all that follows."""
        schedule = self.host.schedule
        random = schedule.random
        while data:
            size = random.choice((len(data), 1, random.randint(1, len(data))))
            part, data = data[:size], data[size:]
            if cut and random.random() < cut:
                self._arrive(delay, self._break)
                return
            self._arrive(delay, lambda part=part: self._take(part))  # type: ignore[misc]

    def close(self, delay: float) -> None:
        self._arrive(delay, lambda: self._end(None))

    def read(self, most: int) -> bytes | None:
        """As recv(2), of a drawn length; None where it would block."""
        if self.buffer:
            size = min(len(self.buffer), self.host.schedule.random.choice((most, most, 1)))
            data = bytes(self.buffer[:size])
            del self.buffer[:size]
            return data
        if self.error is not None:
            raise self.error
        return b"" if self.has_ended else None

    def is_readable(self) -> bool:
        return bool(self.buffer) or self.has_ended

    def _arrive(self, delay: float, act: Callable[[], object]) -> None:
        schedule = self.host.schedule
        self._free_at = max(self._free_at + 1e-9, schedule.now + schedule.random.random() * delay)
        schedule.at(self._free_at, "arrives", act)

    def _take(self, part: bytes) -> None:
        if not (self.has_ended or self.is_closed):
            self.buffer += part
            self._wake()

    def _break(self) -> None:
        for pipe in (self, self.other):
            pipe._end(ConnectionResetError("reset"))

    def _end(self, error: OSError | None) -> None:
        if not (self.has_ended or self.is_closed):
            self.has_ended, self.error = True, error
            self._wake()


class Link:
    """A connection to the server, whose shell this is in small."""

    def __init__(self, game: Game, who: Peer, number: int) -> None:
        self.who, self.number = who, number
        self.up = Pipe(game.server, game.server_wakes)
        self.down = Pipe(who.host, lambda: who.wake(self))
        self.up.other, self.down.other = self.down, self.up
        self.accepted_at = game.server.clock()
        self.was_excess = self.is_proven = False


class Peer:
    """One who connects."""

    def __init__(self, game: Game, host: Host, name: str) -> None:
        self.game, self.host, self.name = game, host, name
        self.link: Link | None = None

    def wake(self, link: Link) -> None:
        self.host.act(self.name, lambda: self.look(link))

    def look(self, link: Link) -> None: ...

    def close(self) -> None:
        if self.link is not None:
            self.link.down.is_closed = True
            self.link.up.close(self.game.delay)
            self.link = None


class Caller(Peer):
    """One that uses the product's client, with one key or another, at the right address or another."""

    def __init__(self, game: Game, host: Host, name: str, key: bytes, address: bytes) -> None:
        super().__init__(game, host, name)
        self.key, self.address = key, address
        self.began_at = host.clock()
        self.client = HandshakeClient(key, "echo", 99.0, self.began_at, game.draw)
        self.outcome: OSError | bool | None = None
        self.attempts = self.reads = 0
        self.was_excess = False
        self.attempt()

    def attempt(self) -> None:
        self.attempts += 1
        self.client.begin(self.host.clock())
        self.set_timer()
        game = self.game
        if not game.schedule.chance(game.lost):
            attempt = self.attempts
            game.schedule.after(
                game.schedule.random.random() * game.delay, "connects", lambda: self.reach(attempt)
            )

    def reach(self, attempt: int) -> None:
        if attempt == self.attempts and self.outcome is None and self.link is None:
            self.link = self.game.accept(self)
            self.client.connected(self.address)
            self.set_timer()

    def set_timer(self) -> None:
        until = self.client.until
        attempt = self.attempts
        self.host.act(
            f"{self.name}'s time", lambda: self.expire(attempt, until), self.host.when(until) + 1e-9
        )

    def expire(self, attempt: int, until: float) -> None:
        is_current = attempt == self.attempts and until == self.client.until and self.outcome is None
        if is_current and not (self.link is not None and self.link.down.is_readable()):
            self.fail(TimeoutError("timed out"))

    def look(self, link: Link) -> None:
        while self.link is link and self.outcome is None and self.client.wanted:
            try:
                wanted = self.client.wanted
                data = link.down.read(wanted)
                if data is None:
                    return
                self.reads += 1
                assert len(data) <= wanted
                answer = self.client.receive(data, self.host.clock())
            except OSError as error:
                self.fail(error)
                return
            if answer:
                self.game.recorded.append(answer)
                link.up.send(answer + EARLY, self.game.delay, self.game.cut)
                self.set_timer()
        if self.link is link and self.outcome is None:
            self.outcome = True
            self.game.check_proven(self, link)

    def fail(self, error: OSError) -> None:
        if self.link is not None:
            self.was_excess |= self.link.was_excess
        self.close()
        try:
            self.client.fail(error, self.host.clock())
        except OSError as last:
            self.outcome = last
            self.game.check_ended(self)
            return
        attempt = self.attempts
        self.host.act(f"{self.name} again", lambda: self.again(attempt), self.host.when(self.client.until))

    def again(self, attempt: int) -> None:
        if attempt == self.attempts and self.outcome is None:
            self.attempt()


class Stranger(Peer):
    """One without the key: it answers with what it recorded, reflects, truncates, trickles, or says nothing."""

    def __init__(self, game: Game, host: Host, name: str) -> None:
        super().__init__(game, host, name)
        self.link = game.accept(self)
        self.seen = b""

    def look(self, link: Link) -> None:
        if link.down.error is not None or self.link is None:
            return
        self.seen += link.down.read(NONCE_BYTES) or b""
        if len(self.seen) < NONCE_BYTES:
            return
        game, random = self.game, self.game.schedule.random
        forged = random.choice(
            (
                *game.recorded[-1:],
                *(
                    b"echo".ljust(SERVICE_BYTES, b"\0") + self.seen[:NONCE_BYTES] + proof
                    for proof in game.proofs[-1:]
                ),
                random.randbytes(RESPONSE_BYTES),
                b"",
            )
        )
        link.up.send(forged[: random.choice((RESPONSE_BYTES, RESPONSE_BYTES - 1))], game.delay, 0.0)
        if random.random() < 0.5:
            self.close()
        self.link = None


class Game:
    """A server, and those who connect to it."""

    def __init__(self, seed: int) -> None:
        self.schedule = Schedule(seed)
        random = self.schedule.random
        self.delay, self.cut, stall, longest, self.lost = weather = WEATHERS[seed % len(WEATHERS)]
        self.is_fair = weather is WEATHERS[0]
        self.wrong: list[str] = []
        self.recorded: list[bytes] = []
        self.proofs: list[bytes] = []
        self.links: dict[int, Link] = {}
        self._numbers = count(1)
        self._looks_at = 0.0
        self._is_awake = False
        self.server = Host(self.schedule, stall, longest)
        self.admission = Admission(KEY, ADDRESS, self.draw)
        self.callers = []
        for name in "abc"[: random.randint(1, 3)]:
            key = KEY if random.random() < 0.8 else OTHER_KEY
            address = ADDRESS if random.random() < 0.9 else OTHER_ADDRESS
            host = Host(self.schedule, stall, longest)
            self.callers.append(Caller(self, host, name, key, address))
        for _ in range(random.choice((0, 0, 1, 4))):
            self.schedule.after(random.random(), "knocks", self.knock)

    def draw(self, length: int) -> bytes:
        return self.schedule.random.randbytes(length)

    def knock(self) -> None:
        Stranger(self, Host(self.schedule, 0.0, 0.0), "stranger")

    # The server.

    def accept(self, who: Peer) -> Link:
        link = Link(self, who, next(self._numbers))
        self.links[link.number] = link
        source = "10.9.9.9" if isinstance(who, Stranger) else f"10.1.1.{who.name}"
        nonce, excess = self.admission.accept(link.number, source, self.server.clock())
        if excess is not None:
            self.close_link(excess, is_excess=True)
        link.down.send(nonce, self.delay, self.cut)
        if len(self.admission) > MOST:
            self.wrong.append(f"{len(self.admission)} connections without a proof")
        self.server_wakes(self.server.when(link.accepted_at + HANDSHAKE_SECONDS) + 1e-9)
        return link

    def server_wakes(self, due: float = 0.0) -> None:
        if due:
            self.server.act("server's time", self.server_wakes, due)
        elif not self._is_awake:
            self._is_awake = True
            self.server.act("server polls", self.poll)

    def poll(self) -> None:
        """As `Listener._run`: what is seen to be ready now is read later, when the server runs again."""
        looked_at = self.server.clock()
        ready = [number for number, link in self.links.items() if link.up.is_readable()]
        self.server.act("server looks", lambda: self.look(looked_at, ready))

    def look(self, looked_at: float, ready: list[int]) -> None:
        self._is_awake = False
        for number in ready:
            if number in self.admission:
                self.receive(self.links[number])
        for number in self.admission.expire(looked_at):
            if self.server.clock() < self.links[number].accepted_at + HANDSHAKE_SECONDS:
                self.wrong.append("a connection was closed before its time")
            self.close_link(number)
        for number in self.links:
            if number in self.admission and looked_at > self.links[number].accepted_at + HANDSHAKE_SECONDS:
                self.wrong.append("a connection without a proof outlived its time")
        is_due = (self.admission.deadline or math.inf) <= self.server.clock()
        if is_due or any(link.up.is_readable() for link in self.links.values()):
            self.server_wakes()

    def receive(self, link: Link) -> None:
        wanted = self.admission.wanted(link.number)
        try:
            data = link.up.read(wanted)
        except OSError:
            data = b""
        try:
            accepted = self.admission.receive(link.number, data) if data is not None else None
        except RefusedError:
            self.close_link(link.number)
            return
        if accepted is None:
            return
        who = link.who
        if not (isinstance(who, Caller) and who.key == KEY and who.address == ADDRESS):
            self.wrong.append(f"{who.name} was admitted without the key")
        if accepted[0] != "echo" or not EARLY.startswith(link.up.buffer):
            self.wrong.append("the server has read beyond the proof")
        link.is_proven = True
        del self.links[link.number]
        self.proofs.append(accepted[1])
        link.down.send(accepted[1] + GREETING, self.delay, self.cut)

    def close_link(self, number: int, *, is_excess: bool = False) -> None:
        link = self.links.pop(number)
        link.was_excess = is_excess
        link.up.is_closed = True
        link.down.close(self.delay)

    # The invariants of clients.

    def check_proven(self, caller: Caller, link: Link) -> None:
        if caller.key != KEY or caller.address != ADDRESS or not link.is_proven:
            self.wrong.append(f"{caller.name} takes a server for proven that is not")
        if not GREETING.startswith(link.down.buffer):
            self.wrong.append(f"{caller.name} has read beyond the proof")
        self.check_cost(caller)

    def check_ended(self, caller: Caller) -> None:
        is_peer = caller.key == KEY and caller.address == ADDRESS
        if is_peer and isinstance(caller.outcome, RefusedError) and not caller.was_excess:
            self.wrong.append(f"{caller.name} was slow, and is called a stranger: {caller.outcome}")
        if self.is_fair and is_peer and not caller.was_excess:
            self.wrong.append(f"{caller.name} failed in fair weather: {caller.outcome!r}")
        if self.is_fair and not is_peer and not isinstance(caller.outcome, RefusedError):
            self.wrong.append(f"{caller.name} has another key, but: {caller.outcome!r}")
        self.check_cost(caller)

    def check_cost(self, caller: Caller) -> None:
        late = caller.host.clock() - caller.began_at - CONNECT_SECONDS
        runs_at = caller.host._runs_at * caller.host._rate - caller.began_at - CONNECT_SECONDS
        if caller.outcome is not True and late > max(runs_at, 0.0) + EPSILON:
            self.wrong.append(f"{caller.name} ended {late:.3f} s after its time")
        if caller.reads > caller.attempts * (NONCE_BYTES + PROOF_BYTES + 1) or caller.attempts > 50:
            self.wrong.append(f"{caller.name} took {caller.attempts} attempts and {caller.reads} reads")

    def play(self) -> Iterator[str]:
        self.schedule.run()
        yield from self.wrong
        for caller in self.callers:
            if caller.outcome is None:
                yield f"{caller.name} never ends"
        if len(self.admission) or self.admission._sources:
            yield "the server remembers connections that have ended"


def play(seed: int) -> list[str]:
    """Play one schedule.

    * Nobody is admitted, and no server taken for proven, without the key on both sides, of the right address.
    * Each side ends within its limit, by its own clock; a server closes nothing earlier but where it has too many.
    * A peer that is slow, or stopped, or whose connection is cut, is never called a stranger.
    * Neither side reads beyond the handshake; no byte is read twice; attempts are few.
    * In fair weather all peers succeed, and all strangers are refused at once.
    """
    return list(Game(seed).play())


def test_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admitting, "MAX_UNPROVEN", MOST)
    play_seeds(play, 600)


def test_a_flood_closes_none_of_another_address() -> None:
    random = Random(1)
    admission = Admission(KEY, ADDRESS, random.randbytes)
    admission.accept(0, "10.0.0.5", 0.0)
    for number in range(1, 3 * admitting.MAX_UNPROVEN):
        _, excess = admission.accept(number, "10.0.0.66", 0.0)
        assert len(admission) <= admitting.MAX_UNPROVEN and excess != 0
    assert 0 in admission
