"""Writes of a job's ElasticWorkers: creation, relaunch in a new Pod, mark as standby. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from controller.resources import Object
from controller.wording import counted
from crds import names
from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.failure_policy import FailureAction
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.meaning import meaning_of
from reconcilers.failure.memory import MemoryRoom, refused_with_more
from reconcilers.failure.renewals import Renewal
from reconcilers.goodput.goodput import NOT_YET_TRAINING
from reconcilers.job.times import TOLERANCE
from reconcilers.look import DesiredJob
from reconcilers.observed.containers import CRASH_LOOP
from reconcilers.observed.ending import NODE_DELETED, OF_SILENT_NODES
from reconcilers.observed.slots import Slot, all_present_slots, present_slots
from reconcilers.observed.start import RUNS_BEFORE
from reconcilers.observed.worker_state import (
    EARLIER_POD_STUCK,
    POD_REFUSED,
    current_report,
    hindered_by,
    runs,
    stuck_by,
)
from reconcilers.observed.workers import new_worker, slot_of
from reconcilers.runtime.acts import Act, Event, RequestVerb, create
from reconcilers.runtime.kinds import ELASTICWORKERS
from reconcilers.runtime.refused import RETRY_SECONDS
from reconcilers.scale import rolling
from reconcilers.scale.rolling import Roll
from reconcilers.world.participants import Bounds, extra_of
from reconcilers.world.vetting import UNJUDGED, Standing

_IDLE = (AgentState.READY, AgentState.FAILED)
MAX_DELAY_SECONDS = 60.0
SPARE_POD_SECONDS = 2.0
"""Longest delay of a Pod that a complete world does not need, while that world starts."""
MAX_EXCLUDED_NODES = 16
LOST_NODE_SECONDS = 60.0
"""Time for which all new Pods of the job avoid a node that fell silent with one. Kubernetes itself calls it
not ready after 40 or 50 s; until then its scheduler takes it for one that has room."""
MAX_LOST_NODES = 64
MAX_FAULTY_NODES = 256

CLEARED = "a node that its Pod must keep off is not faulty any more"
CLEARED_LOOK_SECONDS = 60.0
"""Interval between looks at a Pod that finds no node and must keep off some: neither a new machine with such
a node's name nor another job's check that the node passes wakes this job."""
HINDERED_SECONDS = 300.0
"""Time until a Pod that cannot start on its node is made elsewhere, if others run or have trained."""
_NOT_OF_THE_NODE = (RUNS_BEFORE, CRASH_LOOP, "CreateContainerConfigError", "InvalidImageName")
"""Waiting reasons of Pods that would not start elsewhere either."""
RESUMED = "the job is resumed while its earlier Pod is being deleted"


@dataclass(frozen=True)
class Relaunch:
    """The next incarnation of a worker, with the nodes that its Pod avoids."""

    worker: ElasticWorker
    excluded_nodes: tuple[str, ...]
    faulty_nodes: tuple[str, ...]
    reported_nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class RelaunchPlan:
    """The relaunches that are due, and when more will be."""

    relaunches: tuple[Relaunch, ...] = ()
    look_again_seconds: float | None = None


def delay_seconds(quick_exits: int) -> float:
    """Return the delay after so many quick ends in a row: 0, 1, 2, 4 … 60 s."""
    return 0.0 if quick_exits <= 1 else min(2.0 ** min(quick_exits - 2, 10), MAX_DELAY_SECONDS)


def plan_relaunches(
    workers: Sequence[ElasticWorker],
    rendezvous: Rendezvous,
    now: datetime,
    standing: Standing = UNJUDGED,
    renewed: Mapping[str, str] | None = None,
    avoiding: Collection[str] = (),
    spare_pod_wait_seconds: float = 0.0,
) -> RelaunchPlan:
    """Plan new Pods for slots whose Pod has ended, or is on a node that was found faulty.

    Args:
        renewed: workers that get a new Pod for another reason, by uid, with the reason.
        avoiding: uids of those among them that avoid their last node.
        spare_pod_wait_seconds: wait for a new Pod of a slot that this or the next world does not need.
    """
    due, waits = [], []
    stands = rendezvous.phase is not RendezvousPhase.REFORMING
    members = frozenset(rendezvous.members if stands else ())
    for worker in workers:
        faulty = standing.faulty.get(worker.spec.index) if worker.spec.type == names.WORKER else None
        wanted = faulty or (renewed or {}).get(worker.metadata.uid)
        reason = wanted or _reason(worker, rendezvous)
        if reason is None:
            continue
        wait = 0.0 if wanted else _remaining_delay(worker, now)
        if not wanted and worker.spec.type == names.WORKER and worker.spec.index not in members:
            wait = max(wait, spare_pod_wait_seconds)
        if wait > 0:
            waits.append(wait)
        else:
            reported = standing.reported_nodes[-MAX_FAULTY_NODES:]
            excluded, faulty_nodes = _excluded(worker, avoiding), _faulty(worker, standing)
            due.append(Relaunch(worker, excluded, faulty_nodes, reported, reason))
    return RelaunchPlan(tuple(due), min(waits, default=None))


def _reason(worker: ElasticWorker, rendezvous: Rendezvous) -> str | None:
    status = worker.status
    if status.observed_incarnation != worker.spec.incarnation:
        return None  # the Worker reconciler has not seen the newest incarnation yet
    if status.phase is WorkerPhase.FAILED and status.last_exit is not None:
        return f"{status.last_exit.exit_class}: {status.message}"
    if status.phase is WorkerPhase.SUCCEEDED and rendezvous.phase is RendezvousPhase.REFORMING:
        return "the world broke after this worker had finished; it is needed for the next"
    stuck = stuck_by(worker)
    return stuck.message if stuck is not None and stuck.reason == EARLIER_POD_STUCK else None


def _remaining_delay(worker: ElasticWorker, now: datetime) -> float:
    last_exit = worker.status.last_exit
    if last_exit is None or worker.status.phase is not WorkerPhase.FAILED:
        return 0.0
    return _remaining(delay_seconds(worker.status.quick_exits or 0), last_exit.time, now)


def _remaining(seconds: float, since: datetime, now: datetime) -> float:
    """Return the rest of a wait; 0 if its start is in the future, by a wrong clock."""
    return 0.0 if since > now + TOLERANCE else seconds - (now - since).total_seconds()


def _excluded(worker: ElasticWorker, avoiding: Collection[str]) -> tuple[str, ...]:
    nodes, end = list(worker.spec.excluded_nodes), worker.status.last_exit
    failed = worker.status.node_name if worker.metadata.uid in avoiding else None
    if end is not None and end.reason == NODE_DELETED:  # a new node of its name is another machine
        nodes = [node for node in nodes if node != end.node_name]
    elif end is not None and (meaning_of(end.exit_class).avoids_node or end.action is FailureAction.REPLACE):
        failed = failed or end.node_name
    if failed:
        nodes = [node for node in nodes if node != failed] + [failed]
    return tuple(nodes[-MAX_EXCLUDED_NODES:])


def nodes_just_lost(workers: Iterable[ElasticWorker], now: datetime) -> list[str]:
    """Return the nodes that fell silent with Pods in the last `LOST_NODE_SECONDS`, up to `MAX_LOST_NODES`."""
    ends = (worker.status.last_exit for worker in workers)
    lost = (
        end.node_name
        for end in ends
        if end is not None
        and end.reason in OF_SILENT_NODES
        and _remaining(LOST_NODE_SECONDS, end.time, now) > 0
    )
    return list(dict.fromkeys(filter(None, lost)))[:MAX_LOST_NODES]


def _faulty(worker: ElasticWorker, standing: Standing) -> tuple[str, ...]:
    """Return the slot's faulty nodes that are not cleared, then those found now, up to `MAX_FAULTY_NODES`."""
    earlier = [node for node in worker.spec.faulty_nodes if node not in standing.cleared]
    found = set(standing.faulty_nodes)
    nodes = [*(node for node in earlier if node not in found), *standing.faulty_nodes]
    return tuple(nodes[-MAX_FAULTY_NODES:])


def refused_for_memory(look: DesiredJob) -> tuple[dict[str, str], float | None]:
    """Return the workers whose next Pods get the memory of the last ones, by uid, with the reason, and the
    time until there may be more. A quota may still count the ended Pod, so each gets another try first."""
    found, waits = dict[str, str](), list[float]()
    for worker in look.workers.exceptional:
        less, why = refused_with_more(look.job, worker), stuck_by(worker)
        if less is None or why is None:
            continue
        left_seconds = _remaining(RETRY_SECONDS, why.last_transition_time, look.now)
        if why.reason == POD_REFUSED and left_seconds > 0:
            waits.append(left_seconds)
        else:
            found[worker.metadata.uid] = less.message
    return found, min(waits, default=None)


def hindered_on_their_nodes(look: DesiredJob) -> tuple[dict[str, str], float | None]:
    """Return the workers whose Pods their nodes keep from starting, by uid, with the reason, and the time
    until there may be more. A Pod on a node that it avoids is left there, since it found no other."""
    late, waits = dict[str, str](), list[float]()
    for worker in look.workers.exceptional:
        why, node = hindered_by(worker), worker.status.node_name
        if why is None or why.reason in _NOT_OF_THE_NODE or not node or node in worker.spec.excluded_nodes:
            continue
        left_seconds = _remaining(HINDERED_SECONDS, why.last_transition_time, look.now)
        if left_seconds > 0:
            waits.append(left_seconds)
        else:
            message = f"its Pod did not start on {node} within {HINDERED_SECONDS:.0f} s: {why.message}"
            late[worker.metadata.uid] = message
    if late and not look.published.round and not any(runs(worker) for worker in look.workers):
        late.clear()
        waits.append(HINDERED_SECONDS)
    return late, min(waits, default=None)


def relaunches_of(
    look: DesiredJob,
    world: Rendezvous,
    bounds: Bounds,
    roll: Roll,
    renewals: Mapping[str, Renewal],
    ready: int = 0,
) -> tuple[list[Act], float | None]:
    """Return new incarnations of slots whose Pod has ended, has to leave its node, or has to be replaced.

    Args:
        ready: number of workers that could be in the next world.

    Returns:
        The acts, and the time until more are due.
    """
    job = look.job
    kept_off = [w for w in look.workers.exceptional if _keeps_off(w) and stuck_by(w) is not None]
    hindered, hindered_in = hindered_on_their_nodes(look)
    refused, refused_in = refused_for_memory(look)
    renewed = {  # of several reasons, the last one counts
        **hindered,
        **{worker.metadata.uid: rolling.REASON for worker in roll.relaunches},
        **dict.fromkeys(look.leaving, RESUMED),
        **{w.metadata.uid: CLEARED for w in kept_off if _is_cleared(w, look.standing)},
        **refused,
        **{uid: renewal.reason for uid, renewal in renewals.items()},
    }
    avoiding = {uid for uid, renewal in renewals.items() if renewal.avoids_node} | hindered.keys()
    concerned = look.workers if renewed or look.standing.faulty else look.workers.exceptional
    if not concerned:
        return [], None
    present = all_present_slots(job)
    there = (worker for worker in concerned if slot_of(worker) in present)
    lost = {(names.WORKER, index) for index in extra_of(job, look.workers, look.published).lost}
    wanted = [
        worker
        for worker in there
        if worker.metadata.uid not in look.exhausted_workers and slot_of(worker) not in lost
    ]
    wait_seconds = spare_pod_wait_seconds(look, world, bounds, ready)
    plan = plan_relaunches(wanted, world, look.now, look.standing, renewed, avoiding, wait_seconds)
    room = MemoryRoom(job, look.workers, look.seen.nodes)
    lost_nodes = nodes_just_lost(look.workers, look.now) if plan.relaunches else []
    acts = [relaunched(r, room, renewals.get(r.worker.metadata.uid), lost_nodes) for r in plan.relaunches]
    waits = [plan.look_again_seconds, CLEARED_LOOK_SECONDS if kept_off else None, hindered_in, refused_in]
    return acts, min((wait for wait in waits if wait is not None), default=None)


def _keeps_off(worker: ElasticWorker) -> bool:
    return bool(worker.spec.faulty_nodes or worker.spec.reported_nodes)


def _is_cleared(worker: ElasticWorker, standing: Standing) -> bool:
    """Whether a node that its Pod must keep off no longer counts as faulty."""
    is_passed = not standing.cleared.isdisjoint(worker.spec.faulty_nodes)
    return is_passed or not set(worker.spec.reported_nodes).issubset(standing.reported_nodes)


def spare_pod_wait_seconds(look: DesiredJob, world: Rendezvous, bounds: Bounds, ready: int) -> float:
    """Return the wait for new Pods of slots that a complete world does not need.

    For this world, the wait lasts until it trains, and for the next one, until processes have left, which
    their agents report meanwhile. A standby worker that replaced a lost Pod completes a world. To start
    another Pod then would only delay the start of training.
    """
    if world.phase is RendezvousPhase.REFORMING and ready >= bounds.desired > 0:
        waited = (look.now - (world.reforming_since or look.now)).total_seconds()
        return max(SPARE_POD_SECONDS - waited, 0.0)
    if world.phase is not RendezvousPhase.FORMED or len(world.members) < bounds.desired:
        return 0.0
    if world.round != look.published.round:
        return SPARE_POD_SECONDS
    account = look.job.status.goodput
    trains = account is None or account.state not in NOT_YET_TRAINING
    return 0.0 if trains else max(SPARE_POD_SECONDS - look.seen.round_age_seconds, 0.0)


def created(job: ElasticJob, missing: Collection[Slot], lost_nodes: Sequence[str] = ()) -> Iterator[Act]:
    """Yield the creation of workers for these slots. If the published world has the slot, its new worker gets
    a later incarnation; otherwise its agent would leave, as one that was replaced.

    Args:
        lost_nodes: nodes that were just lost.
    """
    before = job.status.world.incarnation_by_index() if missing else {}
    event = Event("Normal", "WorkersCreated", f"created {counted(len(missing), 'worker')}")
    for number, (type_, index) in enumerate(missing, start=1):
        last = before.get(index, 0) if type_ == names.WORKER else 0
        worker = new_worker(job, type_, index, last + 1)
        if lost_nodes:
            worker["spec"]["lostNodes"] = list(lost_nodes)
        yield create(ELASTICWORKERS, worker, *[event] * (number == len(missing)))


def standby_updated(worker: ElasticWorker, standing: Collection[int]) -> Act:
    """Return the write of whether a worker stands by."""
    metadata, body = worker.metadata, {"status": {"standby": worker.spec.index in standing or None}}
    return Act(
        RequestVerb.PATCH, ELASTICWORKERS, metadata.name, metadata.namespace, body, subresource="status"
    )


def relaunched(
    relaunch: Relaunch,
    room: MemoryRoom,
    renewal: Renewal | None = None,
    lost_nodes: Sequence[str] = (),
) -> Act:
    """Return the write of a slot's next incarnation, which fails if the slot has changed since it was read.

    Args:
        renewal: the renewal, if processes failed whose Pod lives.
        lost_nodes: nodes that were just lost.
    """
    worker, metadata = relaunch.worker, relaunch.worker.metadata
    spec: Object = {
        "incarnation": worker.spec.incarnation + 1,
        "excludedNodes": list(relaunch.excluded_nodes),
        "lostNodes": list(lost_nodes),
        "faultyNodes": list(relaunch.faulty_nodes),
        "reportedNodes": list(relaunch.reported_nodes),
        "replacedFor": renewal.exit_class.value if renewal else None,
    }
    if renewal is not None and renewal.avoids_domain:
        spec["excludedDomain"] = renewal.avoids_domain
    message = f"{metadata.name} gets a new Pod, incarnation {spec['incarnation']}: {relaunch.reason}"
    events = [Event("Normal", "WorkerRelaunched", message)]
    memory = room.changed_memory(worker, in_place=renewal is not None and not renewal.avoids_node)
    spec["memoryBefore"] = memory and memory.before
    if memory is not None:
        spec["resources"] = memory.resources.to_wire()
        events.append(Event("Normal", memory.reason, memory.message))
    body = {"metadata": {"resourceVersion": metadata.resource_version}, "spec": spec}
    return Act(
        RequestVerb.PATCH, ELASTICWORKERS, metadata.name, metadata.namespace, body, events=tuple(events)
    )


def suspended_pods(job: ElasticJob, workers: Sequence[ElasticWorker]) -> frozenset[str]:
    """Return the uids of a resumed job's workers whose Pod the suspension has ended, or still has to end.

    The Pod is being deleted, and its agent leaves because it saw the suspension: whatever the agent reported,
    it joins no world, and its exit is no success. The next Pod need not wait for its grace period, nor for a
    dead node.
    """
    if job.status.phase is not JobPhase.SUSPENDED or job.stops:
        return frozenset()
    return frozenset(
        worker.metadata.uid
        for worker in workers
        if worker.status.pod_uid is not None
        and worker.status.observed_incarnation == worker.spec.incarnation
        and worker.status.phase is not WorkerPhase.FAILED
    )


def standing_by(job: ElasticJob, workers: Sequence[ElasticWorker], world: Rendezvous) -> frozenset[int]:
    """Return the indices of standby workers; empty if the job wants none, or has no world yet."""
    spec = job.spec.replica_specs.get(names.WORKER)
    if spec is None or not spec.standby or world.phase is RendezvousPhase.FORMING:
        return frozenset()
    beside = set(present_slots(job, names.WORKER)).difference(world.members)
    return frozenset(w.spec.index for w in workers if w.spec.type == names.WORKER and _is_idle(w)) & beside


def needs_standby_update(workers: Sequence[ElasticWorker], standing: Collection[int]) -> list[ElasticWorker]:
    """Return the workers whose status does not show yet whether they stand by."""
    training = (w for w in workers if w.spec.type == names.WORKER)
    return [w for w in training if bool(w.status.standby) != (w.spec.index in standing)]


def _is_idle(worker: ElasticWorker) -> bool:
    report = current_report(worker)
    return worker.status.phase is WorkerPhase.RUNNING and report is not None and report.state in _IDLE
