"""The NodeCheck reconciler: which nodes test each other, and with which verdicts.

A check goes in steps: the local tests, then rounds of groups. The status publishes a step, the nodes' agents
carry it out and report, and when every node has answered or is out, one status write records the results
and publishes the next step, or the verdicts. All decisions are made from the API objects alone.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from controller.errors import NotFound
from controller.events import EventType
from controller.reconciler import Request, Result
from controller.slices import Slices, computed
from controller.wording import counted
from crds import names
from crds.elasticjob import ElasticJob
from crds.findings import Finding, Verdict
from crds.model import ConditionStatus
from crds.nodecheck import Accelerator, NodeCheck, NodeCheckPhase, NodeCheckStatus
from healthcheck.diagnosis import conclude, investigate
from healthcheck.plan import ProbeRound, next_step
from healthcheck.stragglers import references_of
from reconcilers.findings.faulty import with_all_evidence
from reconcilers.findings.finished import is_finished, newest_on
from reconcilers.findings.machine import created_at
from reconcilers.findings.reference import references_on, speeds_of
from reconcilers.nodecheck import status as check_status
from reconcilers.nodecheck.claiming import Claiming, Permit
from reconcilers.nodecheck.claims import HOLD_SECONDS, WAITING_FOR_AGENTS, WAITING_FOR_CHECK, YIELDED
from reconcilers.nodecheck.nodes import (
    CheckedNode,
    Out,
    awaited,
    checked_nodes_of,
    fleet_of,
    lacks_gpu,
    settings_of,
    tested_gpus,
    untested_accelerators,
)
from reconcilers.nodecheck.scope import (
    CheckRefusal,
    FailedReason,
    Scope,
    choose,
    is_idle,
    lost_job,
    named_nodes,
    one_each,
    speakers,
    too_many,
    wanted_workers,
)
from reconcilers.nodecheck.size import has_no_room, has_room_for_round, to_wire
from reconcilers.nodecheck.steps import (
    StepResult,
    ended_gathering,
    ended_step,
    history_of,
    nodes_without_worker,
    settled_nodes,
)
from reconcilers.nodecheck.view import CheckView, CheckWorkers
from reconcilers.observed.conditions import observed_at
from reconcilers.observed.observations import Observations
from reconcilers.observed.options import DEFAULT_WORKERS_PER_NAMESPACE
from reconcilers.observed.slots import wanted_slots
from reconcilers.observed.status_patch import merge_patch, validated
from reconcilers.runtime.acts import telling_refusals, write_status
from reconcilers.runtime.clock import LONG_AGO
from reconcilers.runtime.kinds import NODECHECKS
from reconcilers.runtime.tools import Tools, WithTools

SLACK_SECONDS = 0.05
WAITING_SECONDS = 600.0
"""Time between two looks at a check that waits for others. They trigger one when they make way; but nodes can
become free without that, as when a job's workers move or a Node's labels change."""
BEHIND_SECONDS = 0.5
"""Time until the next look at an object that the API server has and the cache lacks."""
CONSEQUENCES_SECONDS = 600.0
"""Time for which a controller keeps a finished check, however old, until its nodes' cordons and records are
written."""
IDLE, AGENTS = "idle", "agents"
GATHERING = (IDLE, AGENTS)
"""Waits before the first step; at most HOLD_SECONDS unless the check is an administrator's."""
MOST_AT_ONCE = 500
"""Limit of workers that one look creates, so that other checks have their turn."""
NO_GPU = Out("it has no nvidia.com/gpu, which the check requires", reason="NoGPU")


@dataclass
class _Turn:
    """One look at one check: its input, and the Events and the time of the next look that it results in."""

    check: NodeCheck
    raw: dict[str, Any]
    job: ElasticJob | None
    now: datetime
    events: list[tuple[EventType, str, str]] = field(default_factory=list)
    look_again_seconds: float | None = None

    @property
    def status(self) -> NodeCheckStatus:
        return self.check.status

    def event(self, type_: EventType, reason: str, message: str) -> None:
        self.events.append((type_, reason, message))

    def look_again_within(self, seconds: float | None) -> None:
        if seconds is not None:
            current = self.look_again_seconds
            self.look_again_seconds = seconds if current is None else min(seconds, current)


class NodeCheckReconciler(WithTools):
    def __init__(self, tools: Tools, most_workers: int = DEFAULT_WORKERS_PER_NAMESPACE) -> None:
        super().__init__(tools)
        monotonic, checks = tools.clock.monotonic, tools.cache.store(NODECHECKS)
        self._view = CheckView(tools.cache, tools.client)
        self._making = CheckWorkers(tools.client, tools.cache, monotonic, most_workers)
        self._since = Observations(checks, monotonic)
        self._waiting = Observations(checks, monotonic)
        self._claiming = Claiming(tools.cache, monotonic, lambda check: self.wake(check))
        self.made_way = self._claiming.made_way
        """Function that returns the checks that may go on when one makes way."""
        self.wake: Callable[[Request], object] = lambda check: None
        """Function that makes the controller look at another check."""

    async def reconcile(self, request: Request) -> Result:
        try:
            return await self._look(request)
        finally:
            self._claiming.end_look(request)

    async def _look(self, request: Request) -> Result:
        found = self._view.check(request.namespace, request.name)
        if found is None:
            return Result()
        check, raw = found
        with telling_refusals(self._recorder, raw):
            if is_finished(raw):
                return await self._expire(check)
            turn = _Turn(check, raw, self._view.job_of(check), self._clock.now())
            await self._write(turn, await self._next(turn))
        return Result(turn.look_again_seconds)

    async def _expire(self, check: NodeCheck) -> Result:
        """Delete a finished check when its time is over, and its consequences are written."""
        left_seconds, metadata = check_status.seconds_to_expiry(check, self._clock.now()), check.metadata
        if left_seconds is None:
            return Result()
        seen_seconds = self._since.age_seconds(metadata.uid, "finished")
        left_seconds = max(left_seconds, CONSEQUENCES_SECONDS - seen_seconds)
        if left_seconds > 0:
            return Result(left_seconds)
        with contextlib.suppress(NotFound):
            await self._client.delete(NODECHECKS, metadata.name, metadata.namespace, uid=metadata.uid)
        return Result()

    async def _next(self, turn: _Turn) -> NodeCheckStatus:
        """The next status; the same one while the check waits."""
        if turn.check.spec.job_name is not None:
            lost = lost_job(turn.check, turn.job)
            if lost is not None:
                return await self._refuse_unless_behind(turn, lost)
        if not turn.status.nodes:
            begin = self._begin_nodes(turn) if turn.job is None else self._begin_job(turn, turn.job)
            return await begin
        yielded, left_seconds = await self._claiming.to_yield(turn.check)
        if yielded:
            return await self._yield(turn, yielded)
        turn.look_again_within(left_seconds)
        if turn.status.phase is NodeCheckPhase.PENDING:
            return await self._gather(turn)
        return await self._carry_on(turn)

    # --- before the first step ------------------------------------------------------------------------

    async def _begin_nodes(self, turn: _Turn) -> NodeCheckStatus:
        """Fix the nodes of a check of nodes; their workers are created next."""
        slices = Slices()
        wanted = named_nodes(turn.check.spec, self._view.labels(turn.check.spec))
        if isinstance(wanted, CheckRefusal):
            return await self._refuse_unless_behind(turn, wanted)
        await slices.pause()
        scope = choose(one_each(wanted), await self._view.fresh(turn.check, wanted, turn.now))
        await slices.pause()
        return await self._begin(turn, replace(scope, participants=one_each(scope.nodes)))

    async def _begin_job(self, turn: _Turn, job: ElasticJob) -> NodeCheckStatus:
        """Fix the nodes of a job check, once the job has released its workers to it and they are idle."""
        check = turn.check
        if job.status.active_check != check.metadata.name:
            message = f"waits until job {job.metadata.name} lets its workers be checked"
            return check_status.waiting(turn.status, "WaitingForJob", message, turn.now)
        wanted = wanted_workers(check.spec, await self._view.workers_of(check))
        idle = [worker for worker in wanted if is_idle(worker, job.status.world)]
        expected = len(check.spec.workers or wanted_slots(job, names.WORKER))
        if len(idle) < expected and not self._is_overdue(turn, IDLE):
            message = "waits until the workers to be checked are there and have stopped training"
            return check_status.waiting(turn.status, "WaitingForWorkers", message, turn.now)
        if not idle:
            message = f"job {job.metadata.name} has no workers that can be checked"
            return self._refuse(turn, CheckRefusal(FailedReason.NO_WORKERS, message))
        candidates = speakers(idle)
        fresh = await self._view.fresh(check, [candidate.node for candidate in candidates], turn.now)
        status = await self._begin(turn, choose(candidates, fresh))
        return status if status.finished or not status.nodes else self._start(turn, status)

    async def _begin(self, turn: _Turn, scope: Scope) -> NodeCheckStatus:
        slices, is_of_job = Slices(), turn.check.spec.job_name is not None
        if has_no_room(turn.check.spec, scope):
            return self._refuse(turn, too_many(len(scope.nodes)))
        is_patient = not is_of_job or not self._is_overdue(turn, WAITING_FOR_CHECK, self._waiting)
        permit = await self._claiming.take(turn.check, scope.nodes, without_contested=not is_patient)
        if permit.is_refused and is_patient:
            return self._wait_for_others(turn, permit)
        await slices.pause()
        nodes = self._view.nodes(scope.nodes)
        needs_gpu = turn.check.spec.accelerator is Accelerator.NVIDIA_GPU
        withdrawn = {name: NO_GPU for name, raw in nodes.items() if needs_gpu and lacks_gpu(raw)}
        withdrawn |= permit.left_out(turn.check)
        await slices.pause()
        made = turn.check.metadata.creation_timestamp or LONG_AGO
        as_of = max([made, *map(created_at, nodes.values())])
        status = check_status.scoped(turn.status, scope, withdrawn, as_of, turn.now)
        untested = untested_accelerators(nodes.values())
        if untested:
            status = check_status.with_untested_accelerators(status, untested, turn.now)
        turn.event("Normal", "CheckStarted", str(scope))
        if len(scope.reused) == len(scope.nodes):
            return self._finish(turn, status, await self._kept(turn.check, scope))
        return status

    async def _kept(self, check: NodeCheck, scope: Scope) -> list[Finding]:
        """The findings on nodes that have all passed another check lately."""
        slices, findings, namespace = Slices(), [], check.metadata.namespace
        for node in scope.nodes:
            newest = newest_on(node, self._view.finished.on(node, namespace))
            finding = newest.evidence.get(node) if newest is not None else None
            finding = finding or Finding(node=node, verdict=Verdict.HEALTHY)
            findings.append(finding.model_copy(update={"verdict": Verdict.HEALTHY}))
            await slices.pause()
        return findings

    async def _gather(self, turn: _Turn) -> NodeCheckStatus:
        """Wait for the agents of a check of nodes, then start the local tests with those that are ready."""
        workers = await self._view.workers_of(turn.check)
        missing = await computed(len(turn.status.nodes), nodes_without_worker, turn.check, workers)
        missing = self._making.not_taken(turn.check, missing)
        refused = await self._making.make(turn.check, missing[:MOST_AT_ONCE])
        if len(missing) > MOST_AT_ONCE:
            turn.look_again_within(0.0)
        participants, ended = await self._ended(turn, AGENTS, ended_gathering)
        if ended is None and refused is not None:
            left_seconds = max(refused.retry_at - self._clock.monotonic(), 0.0)
            turn.look_again_within(left_seconds)
            return check_status.waiting(turn.status, "WorkerRefused", refused.message, turn.now)
        if ended is None:
            message = await computed(len(participants), awaited, participants)
            return check_status.waiting(turn.status, WAITING_FOR_AGENTS, message, turn.now)
        status = check_status.settled(turn.status, ended, turn.now)
        nodes = set(status.nodes) - settled_nodes(status)
        permit = await self._claiming.take(turn.check, nodes)
        return self._wait_for_others(turn, permit) if permit.is_refused else self._start(turn, status)

    def _wait_for_others(self, turn: _Turn, permit: Permit) -> NodeCheckStatus:
        turn.look_again_within(permit.rest_seconds or WAITING_SECONDS)
        reason = permit.reason_to_wait(turn.check)
        return check_status.waiting(turn.status, WAITING_FOR_CHECK, reason, turn.now)

    async def _yield(self, turn: _Turn, nodes: Collection[str]) -> NodeCheckStatus:
        """Leave nodes to checks that wait for them. The workers are deleted before the status is written, so
        that a crash between the two is repaired."""
        if turn.check.spec.job_name is None:
            workers = await self._view.workers_of(turn.check)
            await self._making.delete(worker for worker in workers if worker.spec.node_name in nodes)
        left = counted(len(nodes), "node is", "nodes are")
        turn.event("Normal", "Yielded", f"{left} left to checks that waited for them")
        return check_status.settled(
            turn.status, StepResult(dict.fromkeys(sorted(nodes), YIELDED), {}), turn.now
        )

    def _start(self, turn: _Turn, status: NodeCheckStatus) -> NodeCheckStatus:
        count = len(set(status.nodes) - settled_nodes(status) - {*status.reused})
        turn.event("Normal", "RoundStarted", f"local tests: {counted(count, 'node')}")
        return check_status.started(status, turn.now)

    # --- steps ----------------------------------------------------------------------------------------

    async def _carry_on(self, turn: _Turn) -> NodeCheckStatus:
        """Publish the next step, or the verdicts, once all nodes have answered the current one or are out."""
        participants, ended = await self._ended(turn, turn.status.round, ended_step)
        return turn.status if ended is None else await self._after(turn, participants, ended)

    async def _ended(
        self, turn: _Turn, step: object, judge: Callable[..., StepResult | None]
    ) -> tuple[Sequence[CheckedNode], StepResult | None]:
        """The participants, and the step's result if it is over. Before a node drops out, workers are read
        from the API server, since the cache may lag."""
        check, count, overdue = turn.check, len(turn.status.nodes), self._is_overdue(turn, step)
        participants = await computed(count, checked_nodes_of, check, await self._view.workers_of(check))
        ended = await computed(count, judge, turn.status, participants, overdue=False)
        is_in_doubt = overdue if ended is None else not ended.everybody_answered
        if is_in_doubt:
            participants = await computed(count, checked_nodes_of, check, await self._view.workers_now(check))
            ended = await computed(count, judge, turn.status, participants, overdue=overdue)
        return participants, ended

    async def _after(
        self, turn: _Turn, participants: Sequence[CheckedNode], ended: StepResult
    ) -> NodeCheckStatus:
        nodes = self._view.nodes(turn.status.nodes)
        reused = {name: nodes[name] for name in turn.status.reused if name in nodes}
        passed = await self._view.last_passes(turn.check, reused)
        began = turn.status.start_time or turn.now
        ages = {name: (began - at).total_seconds() for name, at in passed.items()}
        size = size_of_step(turn.status)
        return await computed(size, self._step_after, turn, participants, ended, nodes, ages)

    def _step_after(
        self,
        turn: _Turn,
        participants: Sequence[CheckedNode],
        ended: StepResult,
        nodes: Mapping[str, dict[str, Any]],
        vouch_ages: Mapping[str, float],
    ) -> NodeCheckStatus:
        """Decide on the next step; pure, except for the turn's Events."""
        labels = {name: raw["metadata"].get("labels") or {} for name, raw in nodes.items()}
        turn.event("Normal", "RoundFinished", check_status.describe_step(ended, len(turn.status.nodes)))
        status = check_status.settled(turn.status, ended, turn.now)
        history = history_of(status, participants)
        if not turn.status.round:
            status = check_status.with_local_failures(status, history)
        spec = turn.check.spec
        fleet = fleet_of(participants, labels, spec.topology_keys, vouch_ages)
        settings = replace(
            settings_of(spec, participants),
            rotation=rotation_of(turn.check.metadata.uid),
            references=references_on(fleet, nodes),
        )
        step = next_step(history, fleet, settings)
        if isinstance(step, ProbeRound):
            published = check_status.in_round(status, step, participants, turn.now)
            if has_room_for_round(spec, published):
                turn.event("Normal", "RoundStarted", check_status.describe_round(step))
                return published
            step = conclude(investigate(history, fleet, settings), settings)
        status = check_status.with_places(status, step)
        status = check_status.with_classes(status, step.classes, turn.now)
        speeds = speeds_of(references_of(history, fleet, settings), fleet)
        status = status.model_copy(update={"class_speeds": speeds})
        status, findings = check_status.without_replaced(status, step.nodes, nodes, turn.now)
        findings = with_all_evidence(status, findings, fleet, nodes, tested_gpus(participants), turn.now)
        return self._finish(turn, status, findings)

    def _finish(self, turn: _Turn, status: NodeCheckStatus, findings: Sequence[Finding]) -> NodeCheckStatus:
        verdicts = {finding.node: finding.verdict for finding in findings}
        healthy = check_status.summary_of(verdicts, findings, status.faulty_links, status.faulty_domains)
        type_: EventType = "Normal" if healthy.status is ConditionStatus.TRUE else "Warning"
        turn.event(type_, "CheckFinished", healthy.message)
        return check_status.concluded(status, findings, healthy, turn.now)

    async def _refuse_unless_behind(self, turn: _Turn, refusal: CheckRefusal) -> NodeCheckStatus:
        """Refuse the check, which is final; but not for an object that our cache may only lack so far."""
        if await self._view.is_behind(turn.check):
            turn.look_again_seconds = BEHIND_SECONDS
            return turn.status
        return self._refuse(turn, refusal)

    def _refuse(self, turn: _Turn, refusal: CheckRefusal) -> NodeCheckStatus:
        turn.event("Warning", refusal.reason, refusal.message)
        return check_status.refused(turn.status, refusal, turn.now)

    # --- what is read and written ---------------------------------------------------------------------

    def _is_overdue(self, turn: _Turn, step: object, since: Observations | None = None) -> bool:
        """Whether a step has lasted timeoutSeconds; if not, the next look is due by then.

        Only time in contact with the API server counts, so that an outage makes no node late.
        """
        age = (since or self._since).age_seconds(turn.check.metadata.uid, str(step))
        age = min(age, self._clock.monotonic() - self._contact.since)
        limit: float = turn.check.spec.timeout_seconds
        if step in GATHERING and not self._view.is_administrators(turn.check):
            limit = min(limit, HOLD_SECONDS)
        if age >= limit:
            return True
        turn.look_again_within(limit - age + SLACK_SECONDS)
        return False

    async def _write(self, turn: _Turn, status: NodeCheckStatus) -> None:
        """Write the status if anything changed, then the Events."""
        if status is turn.status:
            return
        metadata = turn.check.metadata
        status = observed_at(status, metadata.generation)
        patch = await computed(len(turn.status.nodes), _status_patch, turn.raw, status)
        if not patch:
            return
        await write_status(self._client, NODECHECKS, turn.raw, patch)
        for event in turn.events:
            self._recorder.event(turn.raw, *event)


def size_of_step(status: NodeCheckStatus) -> int:
    """Return the work of a step in nodes times rounds, since every step weighs all rounds again."""
    return len(status.nodes) * max(1, len(status.rounds))


def rotation_of(uid: str) -> int:
    """Return a rotation that differs between checks, and stays after a restart of the controller."""
    return zlib.crc32(uid.encode())


def _status_patch(raw: dict[str, Any], status: NodeCheckStatus) -> dict[str, Any]:
    return merge_patch(raw.get("status", {}), validated(status, to_wire(status)))
