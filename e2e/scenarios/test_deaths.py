"""Ways to die: of each the class, what was done about it, and the Event and the condition that tell it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from e2e import jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.deaths import Life, Mortals
from e2e.observation import Observation, Timeout

HANG_TIMEOUT_SECONDS = 30
"""The first step after a start may take three times as long, with all that is imported before it."""
POLICY = jobs.QUICK_REPORTS | {"hangTimeoutSeconds": HANG_TIMEOUT_SECONDS}
FAILED_SECONDS = 300
FALLEN_OFF_THE_BUS = 79
"""An Xid."""

pytestmark = pytest.mark.needs(Capability.STORAGE)


@dataclass(frozen=True)
class Death:
    """A death of worker 1, which is rank 1, and what follows."""

    name: str
    die: Callable[[Mortals], object]
    exit_class: str
    message: str
    """Part of its message."""
    new_pod: bool = True
    """Else it is restarted in its Pod."""


IN_PLACE = (
    Death("exit 1", lambda m: m.tell(1, "exit"), "UserError", "exited with code 1", new_pod=False),
    Death("an exception", lambda m: m.tell(1, "raise"), "UserError", "ValueError: this", new_pod=False),
    Death("SIGKILL of a process", lambda m: m.kill(1), "Killed", "SIGKILL", new_pod=False),
    Death("a segfault", lambda m: m.tell(1, "crash"), "UserError", "SIGSEGV", new_pod=False),
    Death("a deadlock", lambda m: m.tell(1, "hang"), "Hang", "lock.acquire()", new_pod=False),
    Death("the OOM killer", lambda m: m.tell(1, "eat"), "OOM", "out of memory (limit 1024 MiB)"),
    Death("an Xid", lambda m: m.report_xid(m.pod(1), FALLEN_OFF_THE_BUS), "HardwareError", "Xid 79"),
)


def test_processes_die_in_each_way_and_the_job_trains_on(cluster: Cluster, observation: Observation) -> None:
    mortals = Mortals(cluster, observation)
    # The agent that is injected brings its own pynvml, which the GPU that is none cannot stand in for.
    mortals.submit(2, elasticPolicy=POLICY, agent={"inject": False})
    life = mortals.wait_until_training()
    counted: dict[str, int] = {}
    limited = Capability.MEMORY_LIMITS in cluster.capabilities
    for death in (death for death in IN_PLACE if limited or death.exit_class != "OOM"):
        counted[death.exit_class] = counted.get(death.exit_class, 0) + 1
        life = assert_reported(mortals, death, life, counted)
    assert set(mortals.worker(0)["status"].get("restarts") or {}) == set(), "rank 0 only ever followed"
    mortals.finish()
    jobs.assert_one_world_a_round(observation, mortals.name)


def assert_reported(mortals: Mortals, death: Death, life: Life, counted: dict[str, int]) -> Life:
    """One death in place. Returns the life that follows."""
    before, pod, node = mortals.world(), mortals.pod(1), mortals.node(1)
    death.die(mortals)
    after = mortals.wait_until_training(beyond=life)
    print(f"{death.name}: training again {after.began - life.ended:.1f} s after the last step")

    blamed = {"worker": "mortal-worker-1", "rank": 1, "exitClass": death.exit_class, "round": before["round"]}
    wait_for_report(mortals, f"{death.name} to be reported", blamed)
    assert death.message in mortals.last_failure()["message"], death.name
    wait_until_counted(mortals, counted)

    rounds = [1]
    if death.new_pod:
        rounds.append(2)  # where word of it comes late, all were restarted in their Pods before
        mortals.wait_until_replaced(pod)
        mortals.wait_until_training(beyond=life)
    world = mortals.world()
    assert world["round"] - before["round"] in rounds, death.name
    assert world["members"] == [0, 1], death.name
    assert (mortals.pod(1) != pod) is death.new_pod, death.name
    if death.exit_class == "OOM":
        raised = ["mortal-worker-1 ran out of memory with 1Gi: its next Pod gets 2Gi"]
        wait_for_events(mortals, "MemoryRaised", lambda messages: messages == raised)
    if death.exit_class == "HardwareError":
        assert mortals.worker(1)["spec"]["excludedNodes"] == [node]
        assert mortals.node(1) != node

    lead, kind = f"round {before['round']}: mortal-worker-1 rank 1: ", f"({death.exit_class})"
    wait_for_events(
        mortals,
        "WorldBroken",
        lambda messages: any(lead in t and death.message in t and kind in t for t in messages),
    )
    formed = mortals.condition("WorldFormed")
    assert (formed["status"], formed["reason"]) == ("True", "Formed")
    assert re.search(r"-worker-\d+ rank \d+: ", formed["message"])
    return mortals.lives()[-1]


def wait_for_report(mortals: Mortals, what: str, expected: Object) -> None:
    """The last failure's fields of the same names, which may be put right a moment after training goes on."""

    def read() -> Object:
        latest = mortals.last_failure()
        return {key: latest.get(key) for key in expected}

    with suppress(Timeout):
        mortals.observation.wait_for(what, lambda: read() == expected)
    assert read() == expected, what


def wait_until_counted(mortals: Mortals, counted: Object) -> None:
    """Just these restarts are, once it is known which failures only followed."""
    with suppress(Timeout):
        mortals.observation.wait_for(f"{counted} to be counted", lambda: mortals.restarts() == counted)
    assert mortals.restarts() == counted


def wait_for_events(mortals: Mortals, reason: str, true_of: Callable[[list[str]], bool]) -> None:
    """Events follow what they tell."""
    with suppress(Timeout):
        mortals.observation.wait_for(f"Events {reason}", lambda: true_of(mortals.events(reason)))
    assert true_of(mortals.events(reason)), f"Events {reason} reported: {mortals.events(reason)}"


@pytest.mark.named
def test_an_import_error_at_the_start_fails_the_job_in_seconds(
    cluster: Cluster, observation: Observation
) -> None:
    mortals = Mortals(cluster, observation)
    mortals.submit(1, variables={"IMPORT": "no_such_module"}, elasticPolicy=POLICY)
    mortals.wait_until_failed(FAILED_SECONDS)

    failure, error = mortals.last_failure(), "ModuleNotFoundError: No module named 'no_such_module'"
    assert failure["exitClass"] == "UserError"
    assert error in failure["message"] and "Traceback" in failure["message"]
    condition = mortals.condition("Failed")
    assert (condition["status"], condition["reason"]) == ("True", "SameErrorRepeated")
    assert condition["message"].endswith(f": mortal-worker-0 rank 0: {error}")
    wait_for_events(mortals, "SameErrorRepeated", lambda messages: messages == [condition["message"]])
