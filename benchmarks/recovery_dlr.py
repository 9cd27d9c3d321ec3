"""dlr as a contender: an ElasticJob with two workers on the embedded cluster.

Its figures therefore include the API server, the controller and the watches.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.recovery_breakdown import Join, Watches, joins_of, stages
from benchmarks.recovery_contender import MOST_RESTARTS, SCRIPT, Contender, Failure, Recovery, Stage
from benchmarks.recovery_events import VICTIM_RANK, WORLD_SIZE, Step
from benchmarks.recovery_yardsticks import SlowKubelets
from e2e import jobs
from e2e.api import Kind, Object
from e2e.embedded import EmbeddedCluster
from e2e.observation import Observation

JOB = "recovery"
NODES = WORLD_SIZE + 2
"""Number of nodes: one for a worker to move to, and one for a standby, besides the workers'."""
STANDBY_SECONDS = 120.0
SLOW_KUBELETS = "dlr, a real kubelet's latencies"


class Dlr(Contender):
    has_stages = True

    def __init__(self, cluster: EmbeddedCluster, *, warm_start: bool = True, standby: int = 0) -> None:
        self._cluster = cluster
        self._warm_start = warm_start
        self._standby = standby
        flags = " --no-warm-start" * (not warm_start)
        self.name = f"dlr{flags}" + (f", standby: {standby}" if standby else "")
        starts_matter = {
            Failure.PROCESS,
            Failure.POD,
        }  # a warm start hardly matters after half a minute without heartbeats
        self.failures = frozenset(Failure if warm_start else starts_matter)
        if isinstance(cluster, SlowKubelets):
            self.name = SLOW_KUBELETS
            self.failures = frozenset({Failure.POD})
        self._scope = ExitStack()
        self._observation: Observation | None = None
        self._watches: Watches | None = None
        self._lost_node = ""

    def start(self, events: Path, *, observed: bool) -> None:
        self._scope = ExitStack()
        self._observation = self._scope.enter_context(self._cluster.namespace(JOB))
        if observed:
            self._watches = Watches(self._cluster.kubeconfig, self._observation.namespace)
            self._scope.callback(self._watches.close)
        self._cluster.apply(self._manifest(events), self._observation.namespace)

    def _manifest(self, events: Path) -> Object:
        flags = ["--nproc-per-node=1"] + ["--no-warm-start"] * (not self._warm_start)
        manifest = jobs.scripted(
            self._cluster,
            JOB,
            WORLD_SIZE,
            ["dlr", "run", *flags, str(SCRIPT)],
            env={"EVENTS_DIR": str(events)},
            worker={"restartCount": MOST_RESTARTS, "standby": self._standby},
        )
        return jobs.one_a_node(manifest)

    def strike(self, failure: Failure, victim: Step) -> float:
        assert self._observation is not None
        if self._standby and failure is not Failure.PROCESS:
            self._observation.wait_for("standby workers", self._standby_is_ready, STANDBY_SECONDS)
        pod, namespace = self._victims_pod(self._observation), self._observation.namespace
        if failure is Failure.PROCESS:
            process = self._cluster.training_processes(namespace, pod)[0]
            struck_at = time.monotonic()
            os.kill(process.pid, signal.SIGKILL)
        elif failure is Failure.POD:
            api = self._cluster.api()
            struck_at = time.monotonic()
            api.delete(Kind.POD, pod["metadata"]["name"], namespace, gracePeriodSeconds=0)
            api.close()
        else:
            self._lost_node = pod["spec"]["nodeName"]
            struck_at = time.monotonic()
            self._cluster.power_off(self._lost_node)
        return struck_at

    def _victims_pod(self, observation: Observation) -> Object:
        """Return the Pod of the rank to fail; with standby workers, its slot varies."""
        index = jobs.rendezvous(observation, JOB)["members"][VICTIM_RANK]
        worker = next(w for w in observation.workers(JOB) if int(w["spec"]["index"]) == index)
        return observation.pods()[f"{worker['metadata']['name']}-{worker['spec']['incarnation']}"]

    def _standby_is_ready(self) -> bool:
        """Return whether enough present Pods have an agent that stands by."""
        assert self._observation is not None
        statuses = [worker.get("status", {}) for worker in self._observation.workers(JOB)]
        ready = [
            status
            for status in statuses
            if (agent := status.get("agent") or {}).get("state") == "Ready"
            and agent.get("podUid") == status.get("podUid")
        ]
        return len(ready) >= self._standby

    def mend(self) -> None:
        if self._lost_node:
            self._cluster.power_on(self._lost_node)
            self._lost_node = ""

    def stages(self, recoveries: Sequence[Recovery]) -> list[Mapping[Stage, float]]:
        """Return the stages for killed processes: a lost Pod's agent takes no part in a recovery."""
        assert self._watches is not None
        arrivals, joins = self._watches.arrivals(), self._joins()
        return [stages(recovery, arrivals, joins) for recovery in recoveries]

    def _joins(self) -> list[Join]:
        assert self._observation is not None
        monotonic_offset = time.time() - time.monotonic()
        return [
            join
            for pod in jobs.current_pods(self._observation, JOB)
            for join in joins_of(
                self._cluster.log(self._observation.namespace, pod["metadata"]["name"]), monotonic_offset
            )
        ]

    def stop(self) -> None:
        self.mend()
        self._scope.close()
