"""Jobs from other projects' bug trackers, by number (shared/findings/bugs.md): what their Pods come to.

Each Pod is the one that is made of the job's own template, with the agent injected, and ends as a kubelet and an
agent had it end. 01, 16 and 18 are the agent's alone: `tests/agent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from crds.agent_report import AgentReport, AgentState
from crds.elasticworker import WorkerPhase
from crds.names import HAS_BEGUN
from reconcilers.observed.ending import LEFT_EARLY, PROCESS_FAILED
from reconcilers.observed.options import AgentSource
from reconcilers.worker.injection import INIT_CONTAINER, inject_agent
from reconcilers.worker.job_pod import build_job_pod
from reconcilers.worker.worker_status import observe
from tests.reconcilers.build import NOW, failure, job, report, worker
from tests.reconcilers.observing import observation
from tests.reconcilers.pods import RUNS, STARTS, crash_loop, ended

JSON = dict[str, Any]

RAISED = failure(message="ValueError: label 10 is out of range")
KILLED_LOADER = failure(
    message="RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed. ", cause="OOM"
)
MESH = {"name": "mesh-proxy", "image": "x", "restartPolicy": "Always"}
PROXY = {"name": "istio-proxy", "image": "x"}
FETCH = {"name": "fetch-code", "image": "x"}
TRAIN = ["torchrun", "train.py"]
ONCE = ["torchrun", "--max-restarts=0", "train.py"]
TO_TEE = ["bash", "-c", "torchrun --max-restarts=0 train.py 2>&1 | tee $NODE_RANK.log"]
TYPO = ["bash", "-c", "torchrun --bogus train.py | tee log"]
TRAP = ["bash", "-c", "trap 'echo leaving; exit 0' TERM; torchrun train.py & wait"]
PLAIN = ["python", "-c", "import sys; sys.exit(3)"]
BAD_OPTION = ["bash", "-c", "echo 'error: no such option: --batchsize' >&2; exit 2"]
WORDS = "no dataset at /data/train"
BEGUN = ended(0, message=f"dlr: torchrun {HAS_BEGUN}")
"""With the mark of a launcher that was not heard."""


def said(state: AgentState, **more: Any) -> AgentReport:
    return report(0, state, 1, **more)


FAILED = said(AgentState.FAILED, failure=RAISED)


@dataclass(frozen=True)
class Case:
    command: list[str]
    phase: str
    main: JSON
    expected: str
    """Exit class, or the worker's phase where nothing has failed."""
    reason: str = ""
    """Of the end, where it matters."""
    said: AgentReport | None = None
    beside: tuple[JSON, JSON] | None = None
    """A plain sidecar, and its status."""
    before: tuple[JSON, JSON] | None = None
    """An init container or native sidecar, and its status."""
    policy: str | None = None
    inject: bool = True


SUCCEEDED, RUNNING = WorkerPhase.SUCCEEDED.value, WorkerPhase.RUNNING.value
DONE = said(AgentState.SUCCEEDED)
TRAINS = said(AgentState.RUNNING)
CASES = {
    "02 with a native sidecar": Case(
        PLAIN, "Failed", ended(3, message=WORDS), "UserError", before=(MESH, ended(137))
    ),
    "02 without": Case(PLAIN, "Failed", ended(3, message=WORDS), "UserError"),
    "02 with an agent": Case(ONCE, "Failed", ended(1), "UserError", said=FAILED, before=(MESH, ended(137))),
    "02 before the sidecar has ended": Case(PLAIN, "Running", ended(3), "UserError", before=(MESH, RUNS)),
    "03 behind tee": Case(TO_TEE, "Succeeded", ended(0), "UserError", PROCESS_FAILED, FAILED),
    "03 that stopped": Case(
        TO_TEE, "Succeeded", ended(0), "UserError", PROCESS_FAILED, said(AgentState.STOPPED, failure=RAISED)
    ),
    "03 before its first report": Case(TYPO, "Succeeded", BEGUN, "Unknown", LEFT_EARLY),
    "03 without injection": Case(TYPO, "Succeeded", ended(0), SUCCEEDED, inject=False),
    "03 that is done": Case(TO_TEE, "Succeeded", ended(0), SUCCEEDED, said=DONE),
    "04 while it trains": Case(TRAP, "Succeeded", ended(0), "Killed", LEFT_EARLY, TRAINS),
    "04 before round 1": Case(TRAP, "Succeeded", BEGUN, "Unknown", LEFT_EARLY),
    "06 a sidecar crashes": Case(TRAIN, "Failed", ended(0), SUCCEEDED, said=DONE, beside=(PROXY, ended(1))),
    "07 OnFailure": Case(BAD_OPTION, "Running", crash_loop(2), "UserError", policy="OnFailure"),
    "07 Always": Case(BAD_OPTION, "Running", crash_loop(2), "UserError", policy="Always"),
    "07 with an agent": Case(ONCE, "Running", crash_loop(1), "UserError", said=FAILED, policy="OnFailure"),
    "07 a wrong flag": Case(TRAIN, "Running", crash_loop(2), "UserError", policy="OnFailure"),
    "07 that is done": Case(TRAIN, "Running", crash_loop(0), SUCCEEDED, said=DONE, policy="Always"),
    "17 a loader's memory": Case(
        ONCE, "Failed", ended(1), "OOM", said=said(AgentState.FAILED, failure=KILLED_LOADER)
    ),
    "20 Never": Case(TRAIN, "Failed", STARTS, "UserError", before=(FETCH, ended(128))),
    "20 OnFailure": Case(
        TRAIN, "Pending", STARTS, "UserError", before=(FETCH, crash_loop(128)), policy="OnFailure"
    ),
    "20 out of memory": Case(TRAIN, "Failed", STARTS, "OOM", before=(FETCH, ended(137, "OOMKilled"))),
    "30 lost by the runtime": Case(TRAIN, "Failed", ended(255, "Unknown"), "NodeLost", "Unknown", TRAINS),
    "30 without an agent": Case(PLAIN, "Failed", ended(255, "Unknown"), "NodeLost", "Unknown"),
    "30 by another runtime": Case(TRAIN, "Failed", ended(255), "Killed", "Error", TRAINS),
    "30 by an older one": Case(TRAIN, "Succeeded", ended(0), "Killed", LEFT_EARLY, TRAINS),
    "30 before round 1": Case(TRAIN, "Succeeded", ended(0), "Killed", LEFT_EARLY, said(AgentState.READY)),
    "30 after success": Case(TRAIN, "Failed", ended(255, "Unknown"), SUCCEEDED, said=DONE),
    "30 a program's own 255": Case(ONCE, "Failed", ended(255), "UserError", said=FAILED),
    "28 without an agent": Case(PLAIN, "Running", ended(3), "UserError", beside=(PROXY, RUNS)),
    "28 with an agent": Case(ONCE, "Running", ended(1), "UserError", said=FAILED, beside=(PROXY, RUNS)),
    "28 that is done": Case(TRAIN, "Running", ended(0), SUCCEEDED, said=DONE, beside=(PROXY, RUNS)),
    "28 that trains": Case(TRAIN, "Running", RUNS, RUNNING, said=TRAINS, beside=(PROXY, RUNS)),
}


def pod_of(case: Case) -> JSON:
    """The Pod of the job's template, as its kubelet has it."""
    spec: JSON = {"containers": [{"name": "main", "image": "x", "command": case.command}]}
    spec |= {"restartPolicy": case.policy} if case.policy else {}
    statuses, inits = [{"name": "main", **case.main}], []
    if case.beside is not None:
        spec["containers"].append(case.beside[0])
        statuses.append({"name": case.beside[0]["name"], **case.beside[1]})
    if case.before is not None:
        spec["initContainers"] = [case.before[0]]
        inits.append({"name": case.before[0]["name"], **case.before[1]})
    made = build_job_pod(job(replicas=1, template={"spec": spec}), worker())
    if case.inject:
        inject_agent(made, AgentSource())
        inits.insert(0, {"name": INIT_CONTAINER, **ended(0)})
    if case.beside is not None:  # as a webhook has it
        made["spec"]["containers"].reverse()
    made["metadata"]["uid"] = "uid-0-1"
    made["spec"]["nodeName"] = "node-0"
    return made | {
        "status": {"phase": case.phase, "containerStatuses": statuses, "initContainerStatuses": inits}
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_pod_of_a_bug_report_comes_to_the_right_end(case: Case) -> None:
    of = worker(
        phase=WorkerPhase.PENDING if case.phase == "Pending" else WorkerPhase.RUNNING,
        **({} if case.said is None else {"agent": case.said.to_wire()}),
    )
    status = observe(of, observation(pod_of(case), restart_count=9), NOW)
    end = status.last_exit
    if case.expected in (SUCCEEDED, RUNNING):
        assert (status.phase, end, status.restarts) == (case.expected, None, {})
        return
    assert end is not None and end.exit_class == case.expected
    assert status.phase in (WorkerPhase.FAILED, WorkerPhase.PENDING)
    assert sum(status.restarts.values()) >= 1 and status.failure_budget is not None, "it is counted"
    assert not case.reason or end.reason == case.reason
    expected = case.before[0]["name"] if case.before and case.main == STARTS else ""
    assert end.container == expected, "whose end it was"
