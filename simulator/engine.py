"""Run of a fleet with a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from crds.elasticjob import ElasticJob
from simulator import objects
from simulator.account import RunOutcome, TimeUse
from simulator.arrivals import Fault, begin, follow
from simulator.bag import Bag
from simulator.crew import Crew
from simulator.fleet import Fleet
from simulator.groups import GroupedJob
from simulator.planned import PlannedJob
from simulator.state import DAY, SimulationState

SHOWN = 12
"""Members that are shown, in addition to standby; smaller jobs are shown completely."""
TICKS = 100
"""Number of progress reports in a run."""


class Simulation:
    """Simulation of one fleet with one seed."""

    def __init__(self, fleet: Fleet, seed: int = 0, shown: int = SHOWN) -> None:
        self.fleet = fleet
        self.state: SimulationState[Crew] = SimulationState(fleet, seed)
        self._shown = shown
        policies, times, interval = fleet.policies, fleet.times, fleet.memory_interval
        self._groups = 1 if policies.group_nodes is None else fleet.nodes // policies.group_nodes
        share = times.save_memory_seconds / interval if interval else 0.0
        self._saving = min(share + times.save_storage_seconds / policies.storage_checkpoint_seconds, 1.0)
        self._extra = (fleet.max_nodes or fleet.nodes) - fleet.nodes

    # --- the run --------------------------------------------------------------------------------------------

    def run(
        self,
        days: float,
        script: Sequence[Fault] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> RunOutcome:
        """Simulate the fleet.

        Args:
            script: faults that replace the drawn ones.
        """
        state = self.state
        seconds = days * DAY
        self._begin()
        begin(state) if script is None else follow(state, script)
        for tick in range(1, TICKS + 1):
            state.clock.run(seconds * tick / TICKS, self._passes)
            if progress is not None:
                progress(tick / TICKS)
        state.outcome.seconds = state.clock.now
        return state.outcome

    def _begin(self) -> None:
        state, fleet, policies = self.state, self.fleet, self.fleet.policies
        size = policies.group_nodes or fleet.nodes
        shown = min(-(-self._shown // fleet.node_unit) * fleet.node_unit, size)
        hidden = size - shown
        least = least_of(fleet)
        job = job_of(fleet, shown, hidden)
        prototype = trained(job, least, hidden) if hidden or not state.is_single_group else None
        if not state.is_single_group:
            assert prototype is not None
            groups = dict.fromkeys(range(self._groups), prototype.job)
            state.groups = GroupedJob(groups, fleet.times)
        if policies.node_check_before:
            for node in state.nodes.screened():
                state.repair(node)
        first = self._taken(fleet.nodes + self._extra + (policies.standby if state.is_single_group else 0))
        for number in range(self._groups):
            if state.is_single_group:
                crew = Crew(state, PlannedJob(job, least, hidden), Bag(first[:hidden]), prototype=prototype)
                state.active.append(crew)
                state.clock.after(self._checked_before(), partial(self._first_look, crew, first[hidden:]))
            else:
                assert prototype is not None
                theirs = Bag(first[number * size : (number + 1) * size])
                crew = Crew(
                    state, prototype, theirs, prototype=prototype, is_quiet=True, trains=True, number=number
                )
            state.crew_of.update(dict.fromkeys(crew.nodes, crew))

    def _first_look(self, crew: Crew, first: Sequence[int]) -> None:
        """Place the first Pods on these nodes, identical for any number of shown nodes."""
        nodes = self.state.nodes
        spares = self._taken(len(nodes.free))
        for node in first:
            nodes.free.add(node)
        nodes.in_order = True
        crew.look()
        nodes.in_order = False
        for node in spares:
            nodes.free.add(node)

    def _checked_before(self) -> float:
        policies = self.fleet.policies
        return self.fleet.times.check_seconds if policies.node_check_before else 0.0

    def _taken(self, count: int) -> list[int]:
        nodes = self.state.nodes
        taken = [node for node, _ in zip(nodes.free, range(count), strict=False)]
        for node in taken:
            nodes.free.discard(node)
        return taken

    # --- time -----------------------------------------------------------------------------------------------

    def _passes(self, seconds: float) -> None:
        """Add passing time to the account."""
        if seconds <= 0:
            return
        state, account = self.state, self.state.account
        if state.outcome.ended:
            account.seconds[TimeUse.ENDED] += seconds
        elif state.is_single_group:
            (crew,) = state.active
            if crew.trains:
                present = 1 - (crew.job.missing - self._extra) / self.fleet.nodes
                account.trains(seconds, self._saving, crew.pace, present)
            else:
                account.seconds[crew.part] += seconds
        else:
            self._groups_pass(seconds)

    def _groups_pass(self, seconds: float) -> None:
        """Add time of a job with replica groups.

        Members train, unless one of them does not: then the others wait for its gradients until a
        membership without it is published.
        """
        state, account, groups = self.state, self.state.account, self.state.groups
        assert groups is not None
        share, idle, is_blocked = seconds / self._groups, 0, False
        for crew in state.active:
            if not crew.trains:
                idle += 1
                account.seconds[crew.part] += share
                is_blocked = is_blocked or groups.takes_part(crew.number)
            elif not groups.takes_part(crew.number):
                idle += 1
                account.seconds[TimeUse.STALLED] += share
        working = (self._groups - idle) * share
        if is_blocked or state.clock.now < groups.stalled_until:
            account.seconds[TimeUse.STALLED] += working
        else:
            slowest = min((crew.pace for crew in state.active if crew.trains), default=1.0)
            account.trains(working, self._saving, slowest, 1.0)


# --- the job at the start ----------------------------------------------------------------------------------


def least_of(fleet: Fleet) -> int:
    """Return the least number of nodes that a world trains on."""
    if fleet.policies.group_nodes is not None:
        return fleet.policies.group_nodes
    return fleet.nodes if fleet.min_nodes is None else fleet.min_nodes


def job_of(fleet: Fleet, members: int, hidden: int) -> ElasticJob:
    """Return the job as its user writes it, without its hidden workers."""
    policies = fleet.policies
    wanted = members if fleet.max_nodes is None else members + fleet.max_nodes - fleet.nodes
    worker = {
        "replicas": wanted,
        "minReplicas": max(least_of(fleet) - hidden, fleet.node_unit),
        "standby": policies.standby if policies.group_nodes is None else 0,
        "restartCount": policies.restart_count,
    }
    elastic = {
        "nodeUnit": fleet.node_unit,
        "shrinkAfterSeconds": policies.shrink_after_seconds,
        "heartbeatTimeoutSeconds": policies.heartbeat_timeout_seconds,
        "hangTimeoutSeconds": policies.hang_timeout_seconds,
    }
    check = {"enabled": policies.node_check_after, "excludeStragglers": policies.exclude_stragglers}
    is_group = policies.group_nodes is not None
    return objects.new_job(worker, {"elasticPolicy": elastic, "nodeCheck": check}, is_group=is_group)


def trained(job: ElasticJob, least: int, hidden: int) -> PlannedJob:
    """Return the job in training, without any failure so far."""
    made = PlannedJob(job, least, hidden)
    for index in made.look(objects.EPOCH).new_pods:
        now = objects.at(1.0)
        worker = objects.with_pod(job, made.workers[index], f"{objects.JOB}-{index}", now)
        made.put(objects.ready(worker, now))
    if job.spec.node_check.enabled:
        _checked(made)
    made.look(objects.at(2.0))
    made.run_round(1, objects.at(3.0))
    made.look(objects.at(3.0))
    return made


def _checked(job: PlannedJob) -> None:
    """Finish a first check that finds all nodes healthy."""
    body = job.look(objects.at(1.5)).check
    if body is not None:
        workers = job.workers
        verdicts = {
            "nodes": [workers[i].status.node_name for i in workers],
            "workers": list(workers),
            "incarnations": [1] * len(workers),
        }
        job.end_check(body, verdicts, objects.at(1.8))
