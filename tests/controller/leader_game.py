"""Controllers that stand by each other, played: Pods and their kubelets, one API server, clocks that run differently.

The candidates are the product's machine (`controller/leader/candidacy.py`); their shell sends what it asks for, as
`Elector` does. What is played around them: processes stall and are killed, kubelets report late, Pods are deleted or
marked failed while their processes live on, the network loses, delays and doubles, and the server is away.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from controller.errors import AlreadyExists, Conflict, NotFound
from controller.leader import candidacy, election
from controller.leader.candidacy import AskKind, Candidacy
from controller.leader.container_end import message_of, pod_of
from controller.leader.election import ElectionTiming, Tenure
from tests.controller.leader_server import Outage, Server
from tests.played.network import Faults
from tests.played.schedule import Schedule

WALL = datetime(2026, 1, 1, tzinfo=UTC)
TIMINGS = (ElectionTiming(), ElectionTiming(6.0, 4.0, 1.0), ElectionTiming(25.0, 20.0, 2.0))
SLOWEST, FASTEST = 0.93, 1.07
"""Rates of clocks."""
FAIR = Faults(delay_seconds=0.05)
WEATHERS = (
    # faults, share of acts before which a candidate stalls, longest stall
    (Faults(delay_seconds=0.5), 0.0, 0.0),
    (Faults(delay_seconds=0.5, drop=0.1, late=0.1, late_seconds=40.0), 0.02, 40.0),
    (Faults(delay_seconds=4.0, drop=0.3, late=0.3, late_seconds=20.0), 0.01, 12.0),
)
FAIR_REPORT_SECONDS = 1.0
"""Longest time in which a kubelet says that a container has ended (findings/cluster.md: within a second)."""


class Pod:
    """A Pod and its kubelet, which starts the container again whenever it has ended."""

    def __init__(self, game: Game, name: str) -> None:
        self.game, self.name = game, name
        self.is_deleted = False
        self._states: list[dict] = []
        self.process = self._start()
        game.server.pods[name] = self._status()

    def _start(self) -> Process:
        process = Process(self.game, self)
        self._states.append({"running": {}})
        self.game.processes[process.identity] = process
        return process

    def end(self) -> None:
        """The container ends, with all its processes."""
        if not self.process.is_alive:
            return
        self.process.is_alive = False
        random, prefix = self.game.schedule.random, self.game.schedule.random.choice(("", "killed: "))
        message = prefix + message_of(self.process.identity)
        self._states[-1] = {"terminated": {"exitCode": 137, "message": message}}
        self.report_soon()
        pause = random.uniform(0.0, 0.3 if self.game.is_fair else 12.0)
        self.game.schedule.after(pause, f"{self.name} starts again", self._start_again)

    def _start_again(self) -> None:
        if self.is_deleted:
            return
        self.process = self._start()
        self.report_soon()

    def report_soon(self) -> None:
        longest = FAIR_REPORT_SECONDS if self.game.is_fair else 20.0
        self.game.schedule.after(
            self.game.schedule.random.uniform(0.1, longest), f"{self.name}'s status", self._report
        )

    def _report(self) -> None:
        server = self.game.server
        if self.is_deleted:
            return
        if server.outage is not None:
            self.game.schedule.after(0.5, f"{self.name}'s status", self._report)
            return
        server.pods[self.name] = self._status()

    def _status(self) -> dict:
        last = self._states[-2] if len(self._states) > 1 else {}
        container = {"state": copy.deepcopy(self._states[-1]), "lastState": copy.deepcopy(last)}
        return {"metadata": {"name": self.name}, "status": {"containerStatuses": [container]}}

    def delete(self) -> None:
        """Somebody deletes the Pod object by force; the process lives on."""
        self.is_deleted = True
        self.game.server.pods.pop(self.name, None)

    def mark_failed(self) -> None:
        """The control plane marks the Pod of a node that is away; the process lives on."""
        if not self.is_deleted:
            lost = {
                "terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "not found"}
            }
            statuses = [{"state": lost, "lastState": {}}]
            self.game.server.pods[self.name] = {"status": {"phase": "Failed", "containerStatuses": statuses}}


class Process:
    """A controller's process: the shell around the machine."""

    def __init__(self, game: Game, pod: Pod) -> None:
        self.game, self.pod = game, pod
        random = game.schedule.random
        self.identity = f"{pod.name}_{UUID(int=random.getrandbits(128))}"
        self.rate = random.choice((SLOWEST, 1.0, FASTEST))
        self._wall_ahead = random.uniform(-100.0, 100.0)
        self.is_alive, self.reaches_server_at = True, 0.0
        self.has_begun = self.acts = self.has_led = False
        self.leads_since = math.inf
        self.suspensions = 0
        self.runs_at = 0.0
        """When its last stall ends, or has ended."""
        self.state = Candidacy("ns", "dlr", Tenure(self.identity, game.timing), spread=random.uniform(0, 0.2))
        self._wake = game.schedule.after(random.uniform(0.3, 2.0), f"{self.identity} begins", self.turn)

    def clock(self) -> float:
        return self.game.schedule.now * self.rate

    def leads(self) -> bool:
        """As the guard of writes sees it."""
        return self.is_alive and self.state.tenure.leads(self.clock())

    @property
    def holder(self) -> str:
        """The holder of the Lease as it has seen it."""
        record = self.state.tenure.record
        return record.holder if record else ""

    @property
    def is_stalled(self) -> bool:
        return self.runs_at > self.game.schedule.now

    def run(self, name: str, act) -> None:
        """Have it act, as soon as it runs."""
        schedule = self.game.schedule
        if schedule.chance(self.game.stalls):
            until = schedule.now + schedule.random.uniform(0.0, self.game.longest_stall)
            self.runs_at = max(self.runs_at, until)
        if self.is_stalled:
            schedule.at(self.runs_at, f"{self.identity} {name}", act)
        else:
            act()

    def turn(self) -> None:
        """Do what `Elector` does whenever it wakes."""
        self._wake.cancel()
        if not self.is_alive:
            return
        if not self.has_begun and self.game.is_lease_deleted():
            self._wake = self.game.schedule.after(1.0, f"{self.identity} begins", self.turn)
            return
        self.has_begun, now = True, self.clock()
        if not self._follow_term(now):
            self.pod.end()  # LeadershipLost
            return
        while True:
            self.state, ask = candidacy.next_ask(self.state, now, self._wall())
            if ask is None:
                break
            self._send(ask)
        wakes_at, ends = candidacy.next_at(self.state), self.state.tenure.leads_until
        wakes_at = min(wakes_at, ends) if ends > now else wakes_at
        self._wake = self.game.schedule.at(
            wakes_at / self.rate + 1e-6, f"{self.identity} wakes", lambda: self.run("turn", self.turn)
        )

    def _follow_term(self, now: float) -> bool:
        """Begin or end to act as leader; return whether the process may go on."""
        leads, is_holder = self.state.tenure.leads(now), self.state.tenure.is_holder
        if leads and not self.acts:
            self.acts = self.has_led = True
            self.leads_since = self.game.schedule.now
        elif self.acts and not leads:
            self.acts, self.leads_since = False, math.inf
            self.suspensions += 1
            self.state = candidacy.suspended(self.state, now)
        return leads or is_holder or not self.has_led

    def _wall(self) -> datetime:
        return WALL + timedelta(seconds=self.game.schedule.now + self._wall_ahead)

    def _send(self, ask) -> None:
        server, lease = self.game.server, ask.lease
        acts = {
            AskKind.LOOK: server.leases.read,
            AskKind.CREATE: lambda: server.write(server.leases.create, lease),
            AskKind.REPLACE: lambda: server.write(server.leases.replace, lease),
            AskKind.LOOK_AT_POD: lambda: copy.deepcopy(server.pods.get(pod_of(ask.holder))),
        }
        term, is_open = self.suspensions, True

        def take_in(answer):
            nonlocal is_open
            if is_open and self.is_alive and term == self.suspensions:
                is_open = False
                self._take_in(ask, answer)
                self.turn()

        late = TimeoutError("no answer")
        limit_seconds = self.game.timing.renew_deadline_seconds / self.rate
        self.game.schedule.after(
            limit_seconds, "time-out", lambda: self.run("gives up", lambda: take_in(late))
        )
        if self.game.schedule.now >= self.reaches_server_at:
            name = f"{self.identity} {ask.kind.value}"
            server.ask(name, acts[ask.kind], lambda answer: self.run("takes in", lambda: take_in(answer)))

    def _take_in(self, ask, answer) -> None:
        now = self.clock()
        if isinstance(answer, NotFound) and ask.kind is AskKind.LOOK:
            answer = None
        if isinstance(answer, Conflict | AlreadyExists):
            self.state = candidacy.refused(self.state, ask, now)
        elif isinstance(answer, Exception):
            self.state = candidacy.failed(self.state, ask, now)
        elif ask.kind is AskKind.LOOK_AT_POD:
            self.state = candidacy.pod_answered(self.state, ask, answer, now)
        else:
            record = None if answer is None else election.read(answer)
            self.state = candidacy.answered(self.state, ask, record, now)
        self.game.check()

    def stop(self) -> None:
        """End well, as at SIGTERM: give the Lease back."""
        record = self.state.tenure.record
        if self.leads() and record is not None:
            server = self.game.server
            lease = election.released(record, namespace="ns", name="dlr", wall=self._wall())
            server.ask("release", lambda: server.write(server.leases.replace, lease), lambda answer: None)
        self.state = replace(self.state, tenure=election.resigned(self.state.tenure))
        self.pod.end()


class Game:
    """One schedule: a wild time, then fair weather in which trials show what is promised."""

    def __init__(self, seed: int) -> None:
        self.schedule = Schedule(seed)
        random = self.schedule.random
        self.timing = random.choice(TIMINGS)
        self.faults, self.stalls, self.longest_stall = WEATHERS[seed % len(WEATHERS)]
        self.fair_since = math.inf
        self.processes: dict[str, Process] = {}
        self._deleted_at = -math.inf
        self.counts: Counter[str] = Counter()
        self.server = Server(self)
        self._pod_count = 0
        self.pods = [self.new_pod() for _ in range(random.choice((1, 2, 2, 3)))]

    @property
    def is_fair(self) -> bool:
        return self.schedule.now >= self.fair_since

    def new_pod(self) -> Pod:
        self._pod_count += 1
        return Pod(self, f"dlr-controller-{self._pod_count}")

    @property
    def leader(self) -> Process | None:
        return next((process for process in self.alive() if process.leads()), None)

    def alive(self) -> list[Process]:
        return [pod.process for pod in self.pods if pod.process.is_alive]

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        self.run_until(lambda: False, seconds)

    def run_until(self, condition, most_seconds: float) -> bool:
        """Let time pass until something holds, or for so long; return whether it holds."""
        ends_at, is_late = self.schedule.now + most_seconds, []
        self.schedule.at(ends_at, "a time is over", lambda: is_late.append(True))
        while not condition() and not is_late:
            assert self.schedule.step()
            self.check()
        return bool(condition())

    def check(self) -> None:
        leaders = [process for process in self.alive() if process.leads()]
        assert len(leaders) <= 1, f"two lead: {', '.join(each.identity for each in leaders)}"

    def changes_hands(self, before: str, after: str, silent_seconds: float) -> None:
        """Judge a change of the holder."""
        previous = self.processes[before]
        if not previous.is_alive:
            return
        self.counts["a silent leader is followed"] += 1
        shortest_seconds = self.timing.lease_duration_seconds / FASTEST
        assert silent_seconds >= shortest_seconds, f"{after} overtakes {before} after {silent_seconds:.1f} s"

    # --- what befalls them ---

    def mishap(self) -> None:
        """Something happens in the wild time."""
        random = self.schedule.random
        pod = random.choice(self.pods)
        if self.leader is not None and self.schedule.chance(0.5):
            pod = self.leader.pod
        acts = (
            pod.end,
            pod.process.stop,
            pod.delete,
            pod.mark_failed,
            lambda: self.cut_off(pod.process, random.uniform(1.0, 40.0)),
            lambda: self.server.go_away(random.choice(list(Outage)), random.uniform(1.0, 40.0)),
            self._delete_lease,
        )
        random.choice(acts)()

    def cut_off(self, process: Process, seconds: float) -> None:
        """The server is away for one of them."""
        process.reaches_server_at = self.schedule.now + seconds

    def _delete_lease(self) -> None:
        """Delete the Lease, where all have seen it, and no request to create it is still under way."""
        under_way = (*self.schedule.names_to_come(), *self.server.held_names)
        is_settled = not any(name.partition(" ")[2].startswith(AskKind.CREATE.value) for name in under_way)
        if is_settled and all(process.state.tenure.record for process in self.alive()):
            self.server.leases.delete()
            self.server.holder, self._deleted_at = "", self.schedule.now

    def is_lease_deleted(self) -> bool:
        """Whether a leader may go on without a Lease: a process that begins then takes it for a new cluster."""
        is_recent = self.schedule.now < self._deleted_at + self.timing.lease_duration_seconds / SLOWEST
        return is_recent and self.server.leases.lease is None

    def clear(self) -> None:
        """Begin fair weather; Pods that are not there are made again."""
        self.faults, self.stalls, self.fair_since = FAIR, 0.0, self.schedule.now
        self.server.come_back()
        for pod in [pod for pod in self.pods if pod.is_deleted]:
            pod.process.is_alive = False
            self.pods[self.pods.index(pod)] = self.new_pod()
        for pod in self.pods:
            pod.process.reaches_server_at = 0.0
            pod.report_soon()
