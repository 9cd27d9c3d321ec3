"""The life of a job of a seed, and what must hold of it.

A seed draws the size of the job, what befalls it and when, what a user does to it, how far caches lag, when controllers
are killed and requests are lost or late. Then it is calm, and the job has to come to its end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from random import Random
from typing import Any

import orjson

from agent.facts.world import AgentWorld
from controller.resources import Resource
from dlr.job.timeline.life import life_of
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS
from tests.played.cluster import Cluster, Disturbances, Target
from tests.played.network import Faults
from tests.played.training import FAILED, KILLED, Training
from tests.reconcilers.api import Entry
from tests.reconcilers.life import edit, memory, plan, replicas, submit
from tests.reconcilers.outcome import unsound

JSON = dict[str, Any]
JOB = "j"
TROUBLED_SECONDS = 60.0
"""So long things befall the job."""
END_SECONDS = 1_800.0
"""So long a job may take to its end once it is calm: node loss, hangs and back-offs take minutes."""
MOST_STATUS_BYTES = 20_000
HANG_SECONDS = 20
FAILS_TWICE = "something fails, and what a controller decides then is late"
DECISIONS: tuple[Target, ...] = (
    (ELASTICJOBS, "status"),
    (ELASTICWORKERS, None),
    (ELASTICWORKERS, "status"),
    (ELASTICWORLDS, None),
)
FINISHED = ("Succeeded", "Failed")


@cache
def loop() -> asyncio.AbstractEventLoop:
    """One for all: the looks of the controller wait for nothing."""
    return asyncio.new_event_loop()


def disturbances(draw: Random) -> Disturbances:
    """How far everything goes wrong by itself: in half of all lives nothing does but what befalls the job."""
    if draw.random() < 0.3:
        return Disturbances()
    network = Faults(
        delay_seconds=draw.choice((0.0, 0.2, 1.0)),
        drop=draw.choice((0.0, 0.05, 0.2)),
        late=draw.choice((0.0, 0.05, 0.2)),
    )
    return Disturbances(
        kill=draw.choice((0.0, 0.05, 0.2)),
        late=draw.choice((0.0, 0.8)),
        versions=draw.choice((0, 2, 5)),
        slow_watch=draw.choice((0.0, 0.1)),
        network=network,
    )


class Life:
    """One job's, of one seed."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(f"life {seed}")
        self.is_contested = self._draw.random() < 0.2
        """Controllers contend: what one of them decided arrives when others have decided more."""
        last_step = self._draw.randint(8, 20) + (40 if self.is_contested else 0)
        self.cluster = Cluster(seed, loop(), disturbances(self._draw), last_step=last_step)
        self.failures = self.pods = 0
        """How often a process failed or hung, and how often a Pod was lost."""
        self.blamable: Counter[str] = Counter()
        """How often something has befallen each worker."""
        self.lost_in_silence: list[str] = []
        """Workers on a node that was lost."""
        self.is_planned = self.is_suspended = self.is_deleted = False
        """A user has done what gives healthy workers new Pods; wants the job suspended; has deleted it."""
        self.was_away = False
        self.diary: list[str] = []
        """What befell the job, with the time."""
        self.is_undisturbed = self.cluster.disturbances == Disturbances()
        self._members: dict[tuple[str, int], object] = {}
        self._phases: dict[str, str | None] = {}
        self._newest: dict[str, tuple[int, int]] = {}
        served = self.cluster.api.on_change

        def changed(resource: Resource, entry: Entry) -> None:
            self._see(resource, entry)
            served(resource, entry)

        self.cluster.api.on_change = changed

    # What happens.

    def play(self) -> list[str]:
        """Play it, and return what went wrong, a sentence each."""
        draw, cluster = self._draw, self.cluster
        policy = {"lastCallSeconds": 1, "shrinkAfterSeconds": 20, "heartbeatTimeoutSeconds": 30}
        policy |= {"hangTimeoutSeconds": HANG_SECONDS}
        workers = draw.choice((1, 2, 2, 3))
        # All that befalls it may come without a step between.
        self._policy = policy
        self._counts = {"replicas": workers, "minReplicas": min(workers, 2), "restartCount": 10}
        cluster.lengths.save = draw.choice((3.0, 3.0, 12.0))
        self._submit()
        self.befall()
        if self.is_contested:
            self._at(5.0, FAILS_TWICE, Life.fail_twice)
            self._at(draw.uniform(10.0, 40.0), FAILS_TWICE, Life.fail_twice)
        self._at(TROUBLED_SECONDS + 5.0, "it is calm", Life.calm)
        try:
            cluster.schedule.run(until=lambda: self._has_ended() or cluster.api.seconds > END_SECONDS)
        except AssertionError as error:
            cluster.wrong.append(str(error))
        cluster.is_over = True
        return self._wrong()

    def befall(self) -> None:
        """Draw what befalls the job, and when."""
        draw = self._draw
        for _ in range(draw.choice((0, 1, 1, 2, 3))):
            name, act = draw.choice(BEFALLS)
            self._at(draw.uniform(1.0, TROUBLED_SECONDS), name, act)

    def _submit(self) -> None:
        submit(self.cluster.api, elasticPolicy=self._policy)
        edit(self.cluster.api, {"replicaSpecs": {"worker": self._counts}})

    def _at(self, seconds: float, name: str, act: Callable[[Life], object]) -> None:
        def do() -> None:
            if act(self) is not False:
                self.diary.append(f"{self.cluster.api.seconds:.1f} {name}")

        self.cluster.schedule.after(seconds, name, do)

    def calm(self) -> None:
        self.cluster.calm()
        if self.is_suspended:
            self.resume()

    @property
    def job(self) -> JSON | None:
        return self.cluster.api.find(ELASTICJOBS, JOB)

    def _training(self) -> Training | None:
        """The newest training, where all processes run."""
        newest = self.cluster.newest_training
        return newest if newest is not None and newest.trains else None

    def fail_process(self) -> bool:
        training = self._training()
        if training is None:
            return False
        member = self._draw.choice(training.world.members)
        code, text = self._draw.choice(
            ((FAILED, "ValueError: no"), (KILLED, "the process was killed by SIGKILL"))
        )
        self.failures += 1
        self.blamable[f"{JOB}-worker-{member.index}"] += 1
        # Three alike in a row would end the job, as they should.
        training.fail(member, code, f"{text} {'abcdefgh'[self.failures // 2]}")
        return True

    def hang(self) -> bool:
        training = self._training()
        if training is None or not any(part.step for part in training.parts.values()):
            return False  # what never made a step is not found to hang
        training.hangs_at = self._draw.choice(training.world.members)
        if self._draw.random() < 0.5:
            seconds = self._draw.uniform(5.0, HANG_SECONDS)
            self.cluster.schedule.after(seconds, "a collective times out", training.time_out)
        self.failures += 1
        self.blamable[f"{JOB}-worker-{training.hangs_at.index}"] += 1
        return True

    def crash(self, worker: str = "") -> bool:
        agents = [agent for agent in self.cluster.agents.values() if agent.lives]
        agents = [agent for agent in agents if worker in ("", agent.me.worker_name)]
        if not agents:
            return False
        agent = self._draw.choice(agents)
        self._lose(agent.me.worker_name)
        # Three alike in a row would be the program's, and end the job.
        self.cluster.crash(agent, self._draw.choice((137, 1)) if self.pods < 3 else 137)
        return True

    def delete_pod(self) -> bool:
        agents = [agent for agent in self.cluster.agents.values() if agent.lives]
        if not agents:
            return False
        agent = self._draw.choice(agents)
        self._lose(agent.me.worker_name)
        self.cluster.delete_pod(agent.me.pod_name)
        return True

    def delete_all_pods(self) -> bool:
        agents = [agent for agent in self.cluster.agents.values() if agent.lives]
        for agent in agents:
            self._lose(agent.me.worker_name)
            self.cluster.delete_pod(agent.me.pod_name)
        return bool(agents)

    def lose_node(self) -> bool:
        nodes = sorted({agent.me.node_name for agent in self.cluster.agents.values() if agent.lives})
        if not nodes or self.cluster.lost_nodes:
            return False
        node = self._draw.choice(nodes)
        for agent in self.cluster.agents.values():
            if agent.lives and agent.me.node_name == node:
                self._lose(agent.me.worker_name)
                self.lost_in_silence.append(agent.me.worker_name)
        self.cluster.lose_node(node)
        return True

    def _lose(self, worker: str) -> None:
        self.pods += 1
        self.blamable[worker] += 1

    def scale(self) -> bool:
        return self._edit(replicas(self._draw.randint(2, 4)))

    def roll(self) -> bool:
        if self.job is None:
            return False
        self.is_planned = True
        name = f"roll-{self.cluster.api.version}"
        plan(self.cluster.api, name, replicaResourceSpecs=memory(f"{self._draw.randint(2, 9)}Gi"))
        return True

    def suspend(self) -> bool:
        if not self._edit({"suspend": True}):
            return False
        self.is_suspended = True
        self._at(self._draw.uniform(0.0, 40.0), "resume", Life.resume)
        return True

    def resume(self) -> bool:
        if not self.is_suspended or self.cluster.is_away:
            return False
        self.is_suspended = False
        return self._edit({"suspend": False})

    def _edit(self, spec: JSON) -> bool:
        if self.job is None or self.cluster.is_away:
            return False
        self.is_planned = True
        edit(self.cluster.api, spec)
        return True

    def leave_the_api_server_away(self) -> bool:
        self.cluster.is_away = self.was_away = True
        self._at(
            self._draw.uniform(1.0, 60.0), "the API server is back", lambda life: life.cluster.come_back()
        )
        return True

    def fail_process_meanwhile(self) -> bool:
        return self.fail_process() and self.leave_the_api_server_away()

    def kill_controller(self) -> bool:
        return self.cluster.kill_controller()

    def fail_twice(self) -> bool:
        """What follows from the first failure, about job, workers or world, is decided by a controller that is
        killed then, and arrives when others have decided about the second."""
        target = self._draw.choice(DECISIONS)
        training = self._training()
        if training is None:
            self._at(3.0, FAILS_TWICE, Life.fail_twice)
            return False
        worker = f"{JOB}-worker-{self._draw.choice(training.world.members).index}"
        crash = partial(Life.crash, worker=worker)
        fail = crash if target[0] is ELASTICWORKERS else self._draw.choice((Life.fail_process, crash))
        fail(self)
        self.cluster.trap = target
        self._at(self._draw.uniform(2.0, 20.0), "and fails again", fail)
        return True

    def delete(self) -> bool:
        if self.job is None or self._draw.random() < 0.5:
            return False
        self.is_deleted = True
        self.cluster.api.delete(ELASTICJOBS, JOB)
        return True

    def make_again(self) -> bool:
        if self.job is None or self.cluster.is_away:
            return False
        self.is_planned, self.is_suspended = True, False
        self.cluster.api.delete(ELASTICJOBS, JOB)
        self._submit()
        return True

    # What must hold.

    def _has_ended(self) -> bool:
        job = self.job
        return job is None or job.get("status", {}).get("phase") in FINISHED

    def _see(self, resource: Resource, entry: Entry) -> None:
        """Look at each version of the job and its world."""
        if resource is ELASTICWORLDS and not entry.deleted:
            world = AgentWorld.parse(entry.obj["spec"])
            if world is not None and world.members:
                key = entry.obj["metadata"]["uid"], world.round
                if self._members.setdefault(key, world.members) != world.members:
                    self._found(f"round {world.round} has {self._members[key]} and {world.members}")
        if resource is ELASTICJOBS and not entry.deleted:
            self._see_job(entry.obj)

    def _see_job(self, job: JSON) -> None:
        status, uid = job.get("status") or {}, job["metadata"]["uid"]
        world = status.get("rendezvous") or {}
        found = world.get("round", 0), world.get("brokenRound", 0)
        before = self._newest.setdefault(uid, found)
        if any(new < old for new, old in zip(found, before, strict=True)):
            self._found(f"round and broken round went from {before} back to {found}")
        self._newest[uid] = found
        phase, last = status.get("phase"), self._phases.get(uid)
        if last in FINISHED and phase != last:
            self._found(f"the job was {last}, and is {phase}")
        self._phases[uid] = phase
        if (size := len(orjson.dumps(status))) > MOST_STATUS_BYTES:
            self._found(f"the job's status has {size} bytes")

    def _found(self, what: str) -> None:
        self.cluster.wrong.append(what)

    def _wrong(self) -> list[str]:
        wrong, job = list(self.cluster.wrong), self.job
        if job is None:
            return wrong if self.is_deleted else [*wrong, "the job is gone"]
        status = job.get("status", {})
        if status.get("phase") != "Succeeded":
            reason = f"{status.get('phase')} {status.get('reason')}: {status.get('message')}"
            wrong.append(f"the job has not succeeded: {reason}; {status.get('rendezvous')}")
        rounds = (status.get("rendezvous") or {}).get("round", 0)
        if self.is_undisturbed and rounds > 4 + 6 * len(self.diary):
            wrong.append(f"{rounds} rounds where only this befell the job: {self.diary}")
        restarts = status.get("restarts") or {}
        # Where a node is lost in silence, its peers may be found to hang before it is found to be lost.
        if sum(restarts.values()) > self.failures + len(self.cluster.lost_nodes):
            wrong.append(f"{self.failures} failures were counted as {restarts}")
        wrong += self._too_many_pods(status)
        wrong += self._too_many_failures(job)
        blamed = (status.get("lastFailure") or {}).get("worker")
        follows = (status.get("lastFailure") or {}).get("exitClass") == "Unknown" and self.blamable
        if blamed and blamed not in self.blamable and not follows:
            wrong.append(f"nothing befell {blamed}: {status['lastFailure']['message']}")
        if self.is_undisturbed and not self.blamable and not self.was_away and self.cluster.redone:
            wrong.append(f"planned changes have lost {self.cluster.redone} steps")
        wrong += list(unsound(self.cluster.api))
        return list(dict.fromkeys(wrong))

    def _too_many_failures(self, job: JSON) -> Iterator[str]:
        """Yield what the job's account has of failures where there were none, or more of them than there were."""
        status, workers = job["status"], self.cluster.api.list(ELASTICWORKERS)
        history = status.get("history") or []
        if not self.blamable:
            told = {field: status[field] for field in ("restarts", "lastFailure") if status.get(field)}
            told |= {"brokenRound": broken} if (broken := status["rendezvous"].get("brokenRound")) else {}
            told |= (
                {"history": lost}
                if (lost := [each for each in history if each["state"] in ("Recovering", "Down")])
                else {}
            )
            if told:
                yield f"nothing befell the job, and its account has {told}"
        life = life_of(job, workers, None, self.cluster.time())
        shown = Counter(each.worker for each in life.failures if each.what != "Unknown")
        # A node that is lost in silence may be found to hang before it is found to be lost.
        if too_many := shown - self.blamable - Counter(self.lost_in_silence):
            yield f"more failures are shown than there were, {self.blamable}: {too_many}"

    def _too_many_pods(self, status: JSON) -> Iterator[str]:
        """Yield what says that more Pods were lost than were, or replaced."""
        workers = [each.get("status", {}) for each in self.cluster.api.list(ELASTICWORKERS)]
        counts = [each.get("restarts", {}) for each in (*workers, status.get("departed") or {})]
        if sum(sum(each.values()) for each in counts) > self.pods:
            yield f"{self.pods} losses of Pods were counted as {counts}"
        if self.is_planned:
            return
        relaunched = [each.message for each in self.cluster.api.events if each.reason == "WorkerRelaunched"]
        if len(relaunched) > self.pods:
            yield f"{self.pods} Pods were lost: {relaunched}"
        for message in relaunched:
            if message.partition(" ")[0] not in self.blamable:
                yield f"nothing befell it: {message}"


BEFALLS: tuple[tuple[str, Callable[[Life], bool]], ...] = (
    ("a process fails", Life.fail_process),
    ("a process fails", Life.fail_process),
    ("a process hangs", Life.hang),
    ("a Pod's container ends", Life.crash),
    ("a Pod is deleted", Life.delete_pod),
    ("all Pods are deleted", Life.delete_all_pods),
    ("a node is lost", Life.lose_node),
    ("a user scales", Life.scale),
    ("a user has all Pods replaced", Life.roll),
    ("a user suspends", Life.suspend),
    ("the API server is away", Life.leave_the_api_server_away),
    ("a process fails and the API server is away", Life.fail_process_meanwhile),
    ("the controller is killed", Life.kill_controller),
    ("a user deletes the job", Life.delete),
    ("a user makes the job again", Life.make_again),
)


def play(seed: int) -> list[str]:
    """Play the life of a seed; what went wrong, a sentence each, after what befell the job."""
    life = Life(seed)
    wrong = life.play()
    return [*wrong, *life.diary] if wrong else []
