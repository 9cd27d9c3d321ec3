"""A job's life in phases, each from one quiet moment to the next, and runs of a phase with crashes in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.errors import Refused
from controller.resources import PODS
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS, SCALEPLANS
from tests.reconcilers.api import NAMESPACE, Api, Write
from tests.reconcilers.cluster_model import Hang, Script, act, add_nodes, lose_node, renew_leases
from tests.reconcilers.process import Killed, Lag, Process

JSON = dict[str, Any]
JOB = "j"
QUIET_SECONDS = 40.0
"""Longer than any wait of these jobs: heartbeats, shrinkAfter, last call, back-offs."""
MAX_STEPS = 3_000


@dataclass(frozen=True)
class Moment:
    """A write of an undisturbed run, with the server before and after it."""

    write: Write
    before: Api
    after: Api


@dataclass
class Run:
    """From where the server stands until nothing happens any more."""

    api: Api
    script: Script = field(default_factory=Script)
    lag: Lag = field(default_factory=Lag)
    process: Process | None = None
    """The controller that is there at the start; each later one begins afresh."""
    kill_after: tuple[int, ...] = ()
    """Writes of this run, from 1 on."""
    late: Write | None = None
    """A write of a leader that is none any more, still under way."""
    late_after: int | None = None
    """It arrives after so many writes of its successor; None: when that has nothing more to do."""
    keeps_moments: bool = False
    moments: list[Moment] = field(default_factory=list)
    writes: int = 0
    errors: list[str] = field(default_factory=list)

    async def settle(self) -> Api:
        api = self.api
        api.changed_at = api.seconds
        for _ in range(MAX_STEPS):
            if self.late is not None and self.late_after is not None and self.writes >= self.late_after:
                self._arrive()
            process = self._process()
            try:
                if await process.step():
                    continue
            except Killed:
                self._bury()
                continue
            if act(api, self.script) or process.cache.catch_up():
                continue
            if self.late is not None:
                self._arrive()
                continue
            due = process.next_due
            if due is None or due > api.changed_at + QUIET_SECONDS:
                api.seconds = max(api.seconds, api.changed_at + QUIET_SECONDS)
                self.errors += process.errors
                return api
            api.seconds = max(due, api.seconds)
            renew_leases(api)
        raise AssertionError(f"no end in sight after {self.writes} writes")

    def _process(self) -> Process:
        if self.process is None:
            self.process = Process(self.api, self.lag)
        self.process.before_write, self.process.after_write = self._before, self._after
        return self.process

    def _bury(self) -> None:
        assert self.process is not None
        self.errors += self.process.errors
        self.process = None

    def _arrive(self) -> None:
        late, self.late = self.late, None
        assert late is not None
        try:
            self.api.apply(late)
        except Refused:
            return

    def _before(self, write: Write) -> None:
        if self.keeps_moments:
            self._snapshot = self.api.copy()

    def _after(self, write: Write) -> None:
        self.writes += 1
        if self.keeps_moments:
            self.moments.append(Moment(write, self._snapshot, self.api.copy()))
        if self.writes in self.kill_after:
            assert self.process is not None
            self.process.die()


@dataclass(frozen=True)
class Phase:
    name: str
    begin: Callable[[Api], None]
    """What a user does, or what befalls the cluster."""
    script: Script = field(default_factory=Script)


@dataclass(frozen=True)
class Chapter:
    """A phase as it goes undisturbed."""

    phase: Phase
    begun: Api
    moments: tuple[Moment, ...]
    """Its writes, in order."""
    end: Api
    errors: tuple[str, ...]

    def after(self, writes: int) -> Api:
        """The server when so many of its writes were made."""
        return (self.moments[writes - 1].after if writes else self.begun).copy()


# --- what users do --------------------------------------------------------------------------------------------


def submit(api: Api, name: str = JOB, **spec: Any) -> None:
    container = {"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}
    worker = {"replicas": 3, "minReplicas": 2, "template": {"spec": {"containers": [container]}}}
    policy = {"lastCallSeconds": 5, "shrinkAfterSeconds": 20, "heartbeatTimeoutSeconds": 30}
    api.create(
        ELASTICJOBS,
        {
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"replicaSpecs": {"worker": worker}, "elasticPolicy": policy} | spec,
        },
    )


def submit_roles(api: Api) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["dlr", "exec", "x"]}]}}
    submit(api, replicaSpecs={type_: {"replicas": 1, "template": template} for type_ in ("chief", "ps")})


def again(api: Api) -> None:
    """The one of the same name is not yet collected with what it owned."""
    api.delete(ELASTICJOBS, JOB)
    submit(api)


def edit(api: Api, spec: JSON) -> None:
    api.patch(ELASTICJOBS, JOB, {"spec": spec})


def plan(api: Api, name: str, **spec: Any) -> None:
    metadata = {"name": name, "namespace": NAMESPACE}
    api.create(SCALEPLANS, {"metadata": metadata, "spec": {"ownerJob": JOB} | spec})


def check_job(api: Api) -> None:
    api.create(
        NODECHECKS,
        {"metadata": {"name": "c", "namespace": NAMESPACE}, "spec": {"jobName": JOB, "timeoutSeconds": 20}},
    )


def memory(amount: str) -> JSON:
    return {"worker": {"resource": {"memory": amount}}}


def replicas(count: int) -> JSON:
    return {"replicaSpecs": {"worker": {"replicas": count}}}


def lose_pod(api: Api, index: int) -> None:
    name = f"{JOB}-worker-{index}"
    incarnation = api.get(ELASTICWORKERS, name)["spec"]["incarnation"]
    api.delete(PODS, f"{name}-{incarnation}")


LIFE = (
    Phase("create", submit),
    Phase("process failure", lambda api: None, Script(process_failures={1: 1})),
    Phase("Pod failure", lambda api: None, Script(pod_failures={(2, 1): {"exitCode": 1, "reason": "Error"}})),
    Phase(
        "out of memory",
        lambda api: None,
        Script(pod_failures={(0, 1): {"exitCode": 137, "reason": "OOMKilled"}}),
    ),
    Phase("roll", lambda api: plan(api, "roll", replicaResourceSpecs=memory("4Gi"))),
    Phase("shrink", lambda api: edit(api, replicas(2))),
    Phase("grow", lambda api: plan(api, "grow", replicaResourceSpecs={"worker": {"replicas": 3}})),
    Phase("node loss", lambda api: lose_node(api, "node-1")),
    Phase("check", check_job, Script(ill=frozenset({"node-2"}))),
    Phase("suspend", lambda api: edit(api, {"suspend": True})),
    Phase("resume", lambda api: edit(api, {"suspend": False})),
    Phase("hang", lambda api: None, Script(hang=Hang(round=15, culprit=2, first=0))),
    Phase("stand by", lambda api: edit(api, {"replicaSpecs": {"worker": {"standby": 1}}})),
    Phase("stand in", lambda api: lose_pod(api, 1)),
    Phase("finish", lambda api: None, Script(done=True)),
    Phase("delete and make again", again),
    Phase("delete", lambda api: api.delete(ELASTICJOBS, JOB)),
    Phase("roles", submit_roles),
    Phase("server loss", lambda api: api.delete(PODS, f"{JOB}-ps-0-1")),
    Phase("server moves", lambda api: plan(api, "move", migratePods=[{"name": f"{JOB}-ps-0"}])),
    Phase("roles suspend", lambda api: edit(api, {"suspend": True})),
    Phase("roles resume", lambda api: edit(api, {"suspend": False})),
    Phase("chief finishes", lambda api: None, Script(done=True)),
)


def beginning() -> Api:
    api = Api()
    add_nodes(api, 6)
    return api


async def undisturbed(phases: Sequence[Phase] = LIFE) -> dict[str, Chapter]:
    """The whole life under one controller, by phase."""
    api, process, chapters = beginning(), None, {}
    for phase in phases:
        phase.begin(api)
        api.events.clear()
        begun = api.copy()
        run = Run(api, phase.script, process=process, keeps_moments=True)
        await run.settle()
        process = run.process
        chapters[phase.name] = Chapter(phase, begun, tuple(run.moments), api.copy(), tuple(run.errors))
    return chapters
