"""Standby workers: who is there already takes a lost rank, and the lost one's successor stands by."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from e2e import checks, jobs, processes
from e2e.cluster import Capability, Cluster
from e2e.deaths import Life, Mortals
from e2e.observation import Observation

CHECKED = {"enabled": True, "timeoutSeconds": 300, "stragglerRatio": checks.RATIO}

pytestmark = pytest.mark.needs(Capability.STORAGE, Capability.NODE_PROCESSES)


@pytest.mark.named
def test_a_standby_worker_steps_in_at_once_and_is_refilled_again_and_again(
    cluster: Cluster, observation: Observation
) -> None:
    mortals = Mortals(cluster, observation)
    mortals.submit(2, standby=1, elasticPolicy=jobs.QUICK_REPORTS | {"evictionPatienceSeconds": 0})
    life = mortals.wait_until_training(world_of=2)
    first = mortals.world()["round"]
    assert first == 1, "who stands by makes no round of its own"
    (stands_by,) = {0, 1, 2}.difference(mortals.world()["members"])
    wait_for_standby(mortals, {stands_by})
    shown = cluster.kubectl("get", "ew", "-o", "wide", "-n", observation.namespace).stdout
    print(shown)
    assert "STANDBY" in shown and shown.count("true") == 1

    ways: list[tuple[str, int, Callable[[int], None]]] = [
        ("SIGKILL of all the Pod's processes", 0, lambda index: kill_all(mortals, index)),
        ("kubectl drain", 1, lambda index: mortals.drain(mortals.node(index))),
    ]
    try:
        for number, (name, rank, die) in enumerate(ways, start=1):
            life = assert_replaced_by_standby(mortals, name, rank, die, life)
            assert mortals.world()["round"] == first + number, "one round a loss"
        mortals.finish()
    finally:
        mortals.put_nodes_back()
    jobs.assert_one_world_a_round(observation, mortals.name)
    assert not mortals.restarts(), "no process failed in place"
    observation.wait_for("the standby to leave with the job", lambda: not running(observation))


def assert_replaced_by_standby(
    mortals: Mortals, name: str, rank: int, die: Callable[[int], None], life: Life
) -> Life:
    """The worker of this rank dies. Returns the life that follows."""
    members = mortals.world()["members"]
    lost, stays = members[rank], members[1 - rank]
    (stands_by,) = {0, 1, 2}.difference(members)
    began = time.time()
    die(lost)
    after = mortals.wait_until_training(beyond=life, world_of=2)
    world = mortals.world()
    assert world["members"] == sorted((stays, stands_by)), name
    formed = jobs.seconds_between(_rfc3339(began), world["formedAt"])
    print(
        f"{name}: the world was formed {formed:.2f} s after it was asked for, and the next step of all "
        f"ended after {after.began - began:.2f} s, {after.began - life.ended:.2f} s after the last"
    )
    wait_for_standby(mortals, {lost})
    print(f"{name}: refilled after {time.time() - began:.1f} s")
    assert len(jobs.current_pods(mortals.observation, mortals.name)) == 3
    return mortals.lives()[-1]


def wait_for_standby(mortals: Mortals, indices: set[int]) -> None:
    def stand_by() -> bool:
        workers = mortals.observation.workers(mortals.name)
        found = {w["spec"]["index"] for w in workers if w.get("status", {}).get("standby")}
        counts = mortals.job().get("status", {}).get("replicaStatuses", {}).get("worker", {})
        return found == indices and (counts.get("standby"), counts.get("active")) == (len(indices), 2)

    mortals.observation.wait_for(f"workers {indices} to stand by", stand_by)


def kill_all(mortals: Mortals, index: int) -> None:
    """The agent too, as when the node's kernel kills a Pod's cgroup: none sees another one end."""
    pids = pids_of(mortals, index)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def pids_of(mortals: Mortals, index: int) -> list[int]:
    uid = mortals.observation.pods()[mortals.pod(index)]["metadata"]["uid"]
    return [pid for pid in processes.all_pids() if processes.environment(pid).get("DLR_POD_UID") == uid]


def running(observation: Observation) -> list[str]:
    return [name for name, pod in observation.pods().items() if pod["status"].get("phase") == "Running"]


def _rfc3339(seconds: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 1e6):06d}+00:00"
