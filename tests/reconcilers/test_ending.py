"""One judgement of how a Pod is and how it ended: every combination, and cases from other projects' bug trackers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from crds.agent_report import AgentReport, AgentState, RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.failure_policy import FailureAction, FailureRule
from crds.names import HAS_BEGUN
from reconcilers.conditions.reported import SIDECARS_FAILED
from reconcilers.observed.ending import LEFT_EARLY, PROCESS_FAILED, PodJudgement, Situation, judge
from reconcilers.observed.silence import Silence, SilenceVerdict
from reconcilers.observed.start import hindrance_of
from reconcilers.runtime.acts import Event
from reconcilers.shapes import kept_of_pod
from reconcilers.worker.worker_status import observe
from reconcilers.world.participants import Ages, participants_of
from tests.reconcilers import judging
from tests.reconcilers.build import NOW, check_worker, failure, job, report, worker
from tests.reconcilers.observing import observation
from tests.reconcilers.pods import RUNS, STARTS, again, crash_loop, ended, pod_with

JSON = dict[str, Any]

MAIN: dict[str, JSON | None] = {
    "unlisted": None,
    "starts": STARTS,
    "runs": RUNS,
    "left with 0": ended(0),
    "left with 3": ended(3),
    "killed": ended(137),
    "out of memory": ended(137, "OOMKilled"),
    "crash loop": crash_loop(3),
    "runs again": again(3),
    "loop of 0": crash_loop(0),
}
COMPANION: dict[str, JSON | None] = {"none": None, "runs": RUNS, "crashed": ended(1), "killed": ended(137)}
NATIVE: dict[str, JSON | None] = {"none": None, "runs": RUNS, "killed": ended(137)}
INIT: dict[str, JSON | None] = {
    "none": None,
    "done": ended(0),
    "failed": ended(128),
    "out of memory": ended(137, "OOMKilled"),
    "crash loop": crash_loop(128),
}
POLICIES = ("Never", "OnFailure", "Always")
PHASES = ("Pending", "Running", "Succeeded", "Failed")
FAILURE = failure()
REPORTS: dict[str, AgentReport | None] = {
    "none": None,
    "ready": report(0, AgentState.READY, 1),
    "running": report(0, AgentState.RUNNING, 1),
    "failed": report(0, AgentState.FAILED, 1, failure=FAILURE),
    "stopped": report(0, AgentState.STOPPED, 1),
    "stopped by a failure": report(0, AgentState.STOPPED, 1, failure=FAILURE),
    "succeeded": report(0, AgentState.SUCCEEDED, 1),
}
TAKEN: dict[str, JSON] = {
    "no": {},
    "deleted": {"deleted": True},
    "evicted": {"reason": "Evicted", "message": "The node was low on memory."},
}
SILENCES = (SilenceVerdict.SILENT, SilenceVerdict.AGENT_LOST, SilenceVerdict.NODE_LOST)
LAUNCHED = ("", "certain", "begun")
"""Whether the command is certain to start an agent, or one that nobody can see has begun to."""

ENDED = (WorkerPhase.SUCCEEDED, WorkerPhase.FAILED)
HAS_ENDED = {"left with 0": 0, "left with 3": 3, "killed": 137, "out of memory": 137}
"""By state of the training container, its exit code."""
IN_A_LOOP = {"crash loop": 3, "loop of 0": 0}


@dataclass(frozen=True)
class Case:
    main: str
    companion: str
    native: str
    init: str
    policy: str
    phase: str
    said: str
    taken: str
    silence: SilenceVerdict
    launched: str

    @property
    def is_over(self) -> bool:
        """Whether its training container or an init container has ended for good, or its kubelet says so."""
        stays = self.policy == "Never" or (self.policy == "OnFailure" and HAS_ENDED.get(self.main) == 0)
        init_failed = self.policy == "Never" and self.init in ("failed", "out of memory")
        return self.phase in PHASES[2:] or (self.main in HAS_ENDED and stays) or init_failed

    @property
    def has_begun(self) -> bool:
        return self.main not in ("unlisted", "starts")

    @property
    def exit_code(self) -> int | None:
        return HAS_ENDED.get(self.main, IN_A_LOOP.get(self.main))


def cases(step: int) -> Iterator[tuple[Case, PodJudgement]]:
    """Return every so many-th combination, judged."""
    bodies = product(MAIN, COMPANION, NATIVE, INIT, POLICIES, PHASES, TAKEN, LAUNCHED)
    count = -1
    for main, companion, native, init, policy, phase, taken, launched in bodies:
        has_ended = main in HAS_ENDED or main in IN_A_LOOP or main == "runs again"
        if launched == "begun" and not has_ended:
            continue  # the kubelet reads the termination message at the end
        pod = pod_with(
            with_mark(MAIN[main]) if launched == "begun" else MAIN[main],
            companion=COMPANION[companion],
            native=NATIVE[native],
            init=INIT[init],
            policy=policy,
            phase=phase,
            launcher="torchrun" if launched == "certain" else "",
            **TAKEN[taken],
        )
        for said, verdict in product(REPORTS, SILENCES):
            count += 1
            if count % step:
                continue
            case = Case(main, companion, native, init, policy, phase, said, taken, verdict, launched)
            silence = Silence(45.0, verdict, "its node")
            yield case, judge(Situation(pod, REPORTS[said], silence=silence))


STEP = 73
"""Of 1,224,720 Pods, one in so many is judged: with all pairs of states, for no state has 73 values."""


def test_combinations_of_containers_policies_phases_and_reports_keep_the_invariants() -> None:
    """10 states of the training container, 4 of a plain sidecar, 3 of a native one and 5 of an init container, 3 restart policies, 4 phases, 7 reports, 3 ways to be taken away, 3 verdicts on silence, with a
    command that is certain to start an agent or not, or of which one has begun."""
    count = 0
    by_training: dict[tuple[object, ...], PodJudgement] = {}
    for case, judged in cases(STEP):
        count += 1
        _is_succeeded_by_the_agents_word_or_without_one_by_exit_code_0(case, judged)
        _does_not_run_for_ever(case, judged)
        _blames_no_innocent_node(case, judged)
        _tells_whose_end_it_was(case, judged)
        if case.has_begun and case.init in ("none", "done"):
            key = (case.main, case.policy, case.phase, case.said, case.taken, case.silence, case.launched)
            assert by_training.setdefault(key, judged) == judged, f"a sidecar makes a difference: {case}"
    assert count == -(-1_224_720 // STEP)


def with_mark(container: JSON | None) -> JSON:
    """The container whose launcher began, and was not heard."""
    assert container is not None
    made = copy.deepcopy(container)
    for state in (made["state"], made.get("lastState", {})):
        if end := state.get("terminated"):
            end["message"] += f"dlr: torchrun {HAS_BEGUN}\n"
    return made


def _is_succeeded_by_the_agents_word_or_without_one_by_exit_code_0(case: Case, judged: PodJudgement) -> None:
    if judged.phase is WorkerPhase.SUCCEEDED:
        nothing_listed = {case.main, case.companion, case.native, case.init} == {"unlisted", "none"}
        unlisted = nothing_listed and case.phase == "Succeeded"
        no_agent = case.said == "none" and not case.launched
        left_well = no_agent and (case.exit_code == 0 or unlisted)
        assert case.said == "succeeded" or left_well, case
    took_it = case.taken != "no" and (case.is_over or case.taken == "deleted")
    if case.said == "succeeded" and (took_it or (case.is_over and case.exit_code in (0, 137, None))):
        assert judged.phase is WorkerPhase.SUCCEEDED, case
    if case.said == "none" and case.taken == "no" and case.exit_code == 0 and case.has_begun:
        if case.launched:
            assert judged.end is not None and judged.end.reason == LEFT_EARLY, case
            return
        init_failed = case.init not in ("none", "done")  # which cannot be, where training has begun
        assert judged.phase is WorkerPhase.SUCCEEDED or init_failed, case


def _does_not_run_for_ever(case: Case, judged: PodJudgement) -> None:
    if case.is_over or case.taken == "deleted":
        assert judged.phase in ENDED, case
    elif case.main in (*IN_A_LOOP, "runs again") and judged.phase not in ENDED and case.said != "succeeded":
        assert judged.failures > 0 and judged.end is not None, case
    if judged.phase is WorkerPhase.RUNNING:
        assert case.main in ("runs", "runs again", "unlisted", "starts") or not case.is_over, case
        assert case.main not in IN_A_LOOP, case


def _blames_no_innocent_node(case: Case, judged: PodJudgement) -> None:
    if judged.end is None:
        return
    is_silent = case.silence is SilenceVerdict.NODE_LOST and case.main in ("runs", "runs again", "unlisted")
    lost = judged.end.exit_class in (ExitClass.NODE_LOST, ExitClass.HARDWARE_ERROR)
    assert not lost or (is_silent and not case.is_over and case.taken != "deleted"), case


def _tells_whose_end_it_was(case: Case, judged: PodJudgement) -> None:
    assert (judged.phase is not WorkerPhase.FAILED) or judged.end is not None, case
    end = judged.end
    if (
        end is None
        or case.taken != "no"
        or end.exit_class is ExitClass.NODE_LOST
        or end.reason == "AgentSilent"
    ):
        return
    if case.main in ("left with 3", "killed", "out of memory", "crash loop"):
        assert (end.container, end.exit_code) == ("main", case.exit_code), case
    if case.main in ("left with 0", "loop of 0") and case.said.endswith(("failed", "failure")):
        assert (end.reason, end.exit_class) == (PROCESS_FAILED, ExitClass.USER_ERROR), case
    if not case.has_begun and case.init == "out of memory":
        assert (end.exit_class, end.other_container) == (ExitClass.OOM, "fetch"), case


def test_the_training_container_is_known_by_name_wherever_a_webhook_has_put_it() -> None:
    for main, companion, policy in product(MAIN.values(), COMPANION.values(), POLICIES):
        behind, before = (
            judge(Situation(pod_with(main, companion=companion, policy=policy, first=first)))
            for first in (False, True)
        )
        assert behind == before


def test_what_the_cache_keeps_of_a_pod_is_judged_like_the_whole() -> None:
    bodies = product(MAIN.values(), COMPANION.values(), NATIVE.values(), INIT.values(), POLICIES, PHASES)
    for main, companion, native, init, policy, phase in bodies:
        pod = pod_with(main, companion=companion, native=native, init=init, policy=policy, phase=phase)
        pod = {**pod, "spec": pod["spec"] | {"volumes": [{"name": "x"}]}}
        kept = kept_of_pod(pod)
        assert "volumes" not in kept["spec"]
        assert judge(Situation(kept)) == judge(Situation(pod))


def test_an_agent_whose_report_cannot_be_read_has_not_said_that_training_succeeded() -> None:
    left = judge(Situation(pod_with(ended(0), phase="Succeeded"), is_unreadable=True))
    assert left.end is not None and left.end.reason == LEFT_EARLY
    assert "its agent's report cannot be read" in left.end.message


# --- cases of other projects' bug trackers ----------------------------------------------------------------


def seen(of: ElasticWorker, pod: JSON | None, **more: Any) -> Any:
    return observe(of, observation(pod=pod, **more), NOW)


def saying(state: AgentState, observed_round: int = 1, **more: Any) -> ElasticWorker:
    return worker(agent=report(0, state, observed_round, **more).to_wire())


WORDS = "no dataset at /data/train\n"


def test_03_a_launcher_that_dies_before_its_first_report_behind_a_pipe_has_not_succeeded() -> None:
    begun = pod_with(ended(0, message=f"my own words\ndlr: torchrun {HAS_BEGUN}\n"), phase="Succeeded")
    left = pod_with(ended(0), phase="Succeeded", launcher="torchrun")
    status = seen(worker(), left)
    assert seen(worker(), begun) == status, (
        "behind a wrapper that nobody can read, the launcher's mark says it"
    )
    assert (status.phase, status.last_exit.reason) == (WorkerPhase.FAILED, LEFT_EARLY)
    assert status.failure_budget.spent == {"Unknown": 1}
    assert status.message == (
        "exit code 0 without success (torchrun has not reported once, see its log): "
        "keep its exit code by `exec`, `wait` or `set -o pipefail`"
    )
    without = seen(worker(), pod_with(ended(0), phase="Succeeded"))
    assert without.phase is WorkerPhase.SUCCEEDED, "nobody knows of an agent: inject: false, a plain command"
    check = seen(check_worker(), left)
    assert check.phase is WorkerPhase.SUCCEEDED, "a check's agent says nothing of training"


DEVICE = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
MARKED = f"dlr: torchrun {HAS_BEGUN}\n"


@pytest.mark.parametrize("code", [1, 137, 201])
@pytest.mark.parametrize("words", ["", "\n", WORDS, f"Traceback:\n{DEVICE}"])
@pytest.mark.parametrize("place", ["before", "behind", "behind an open line"])
@pytest.mark.parametrize("shape", [ended, crash_loop, again])
def test_beside_a_non_zero_exit_code_the_launchers_mark_is_never_text_of_the_error(
    code: int, words: str, place: str, shape: Callable[..., JSON]
) -> None:
    message = {
        "before": MARKED + words,
        "behind": words + MARKED,
        "behind an open line": words.rstrip() + MARKED,
    }[place]
    loops = shape is crash_loop
    policy, phase = ("Never", "Failed") if shape is ended else ("OnFailure", "Running")
    marked, plain = (
        seen(worker(), pod_with(shape(code, message=text), policy=policy, phase=phase))
        for text in (message, words)
    )
    assert HAS_BEGUN not in marked.model_dump_json()
    assert marked.last_exit.exit_class is plain.last_exit.exit_class
    if words.strip() or plain.last_exit.exit_class is not ExitClass.USER_ERROR:
        assert marked.last_exit.message == plain.last_exit.message
        assert marked.failure_budget == plain.failure_budget
    else:
        assert marked.last_exit.message == f"exit code {code}, see the log of torchrun"
    if loops:
        hindrances = (hindrance_of(pod_with(shape(code, message=text)), None) for text in (message, words))
        assert next(hindrances) == next(hindrances)


def test_a_torchrun_that_does_not_find_dlr_says_what_to_write() -> None:
    """Its command has set PYTHONPATH, in which the agent is found, or its Python does not look there."""
    said = "ValueError: The rendezvous backend 'dlr' is not registered. Did you forget to call `register`?"
    found = seen(worker(), pod_with(ended(1, message=f"Traceback\n{said}\n"), policy="Never", phase="Failed"))
    assert found.last_exit.exit_class is ExitClass.USER_ERROR
    for words in ("PYTHONPATH=FOLDER:$PYTHONPATH", "write `dlr run` in its place"):
        assert words in found.last_exit.message and words in found.message


def test_errors_behind_the_launchers_mark_are_told_apart_and_matched_by_the_failure_policy() -> None:
    rule = FailureRule.model_validate({"action": "FailJob", "onMessagePattern": "libcudart"})
    statuses = [
        seen(
            worker(),
            pod_with(ended(1, message=f"{MARKED}dlr: {text}\n"), phase="Failed"),
            failure_rules=[rule],
        )
        for text in ("ImportError: libcudart.so.12", "ModuleNotFoundError: No module named 'x'", DEVICE)
    ]
    assert len({status.failure_budget.signature for status in statuses}) == 3
    assert [status.last_exit.action for status in statuses] == [FailureAction.FAIL_JOB, None, None]
    assert statuses[-1].last_exit.exit_class is ExitClass.HARDWARE_ERROR


@pytest.mark.parametrize(("figures", "alike"), [({"start_unknown": True}, 1), ({}, 2), (None, 2)])
def test_pods_that_end_alike_after_steps_from_an_unknown_one_may_have_got_further(
    figures: dict[str, bool] | None, alike: int
) -> None:
    rounds = [RoundProgress(1, 1, 110, counted=True, **figures)] if figures is not None else []
    of = saying(AgentState.FAILED, rounds=rounds, failure=failure(message="ConnectionError: reset"))
    for _ in range(2):
        status = seen(of, pod_with(ended(1), phase="Failed"))
        before = status.model_copy(update={"phase": WorkerPhase.RUNNING, "last_exit": None})
        of = of.model_copy(update={"status": before})
    assert status.failure_budget.spent == {"UserError": 2}
    assert (status.failure_budget.alike, status.failure_budget.start_unknown is True) == (alike, alike == 1)


@pytest.mark.parametrize("state", [AgentState.READY, AgentState.RUNNING, AgentState.STOPPED])
def test_04_a_wrapper_that_answers_sigterm_with_exit_code_0_has_not_finished(state: AgentState) -> None:
    left = seen(saying(state), pod_with(ended(0), phase="Succeeded"))
    assert (left.phase, left.last_exit.reason) == (WorkerPhase.FAILED, LEFT_EARLY)
    assert left.last_exit.exit_class is ExitClass.KILLED and left.failure_budget.spent == {}
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    evicted = seen(saying(state), pod_with(ended(0), phase="Succeeded", conditions=[condition]))
    assert (evicted.phase, evicted.last_exit.exit_class) == (WorkerPhase.FAILED, ExitClass.PREEMPTED)
    assert not evicted.failure_budget.spent
    no_agent = seen(worker(), pod_with(ended(0), phase="Succeeded", conditions=[condition]))
    assert no_agent.phase is WorkerPhase.FAILED


@pytest.mark.parametrize(("said", "main"), [(AgentState.RUNNING, RUNS), (AgentState.SUCCEEDED, ended(0))])
def test_06_a_sidecar_that_crashed_shows_on_the_job(said: AgentState, main: JSON) -> None:
    def look(companion: JSON, of: ElasticJob) -> tuple[ElasticJob, list[Event]]:
        reporting = saying(said)
        status = seen(reporting, pod_with(main, companion=companion))
        return judging.judge(of, SIDECARS_FAILED, workers=[reporting.model_copy(update={"status": status})])

    assert look(RUNS, job()) == (job(), []) == look(ended(137), job())
    crashed, events = look(ended(1), job())
    (told,) = crashed.status.warnings
    assert (told.type, told.message) == ("SidecarsFailed", "sidecar proxy: exit code 1 (digits-worker-0)")
    assert [(event.type, event.message) for event in events] == [("Warning", told.message)]
    assert look(ended(1), crashed) == (crashed, [])
    assert not look(RUNS, crashed)[0].status.warnings


def test_07_a_crash_loop_is_told_counted_once_a_failure_and_ended_by_the_budget() -> None:
    of, message = worker(), "Error: no such option: --batchsize"
    for restarts in range(3):
        looping = pod_with(crash_loop(2, message, restarts), policy="OnFailure")
        for _ in range(2):  # the same look again counts nothing
            status = seen(of, looping, restart_count=5)
            of = of.model_copy(update={"status": status})
        assert (status.restarts, status.last_exit.exit_code) == ({"UserError": restarts + 1}, 2)
        assert status.last_exit.message == f"exit code 2: {message}"
        if restarts < 2:
            assert (status.phase, status.last_exit.failures_in_pod) == (WorkerPhase.PENDING, restarts + 1)
            assert status.message == f"main: CrashLoopBackOff: exit code 2: {message}"
            assert status.conditions[-1].reason == "CrashLoopBackOff"
            running = pod_with(again(2, message, restarts + 1), policy="OnFailure")
            resumed = seen(of, running, restart_count=5)
            assert (resumed.phase, resumed.restarts) == (WorkerPhase.RUNNING, status.restarts)
            of = of.model_copy(update={"status": resumed})
    assert (status.phase, status.failure_budget.alike) == (WorkerPhase.FAILED, 3)


def test_07_failures_that_nobody_looked_at_in_time_are_counted_together() -> None:
    looping = pod_with(crash_loop(2, "bad", restarts=4), policy="Always")
    status = seen(worker(), looping, restart_count=2)
    assert (status.phase, status.restarts) == (WorkerPhase.FAILED, {"UserError": 5})


def test_07_what_another_start_in_the_same_pod_does_not_help_gets_a_new_one() -> None:
    looping = pod_with(crash_loop(137, reason="OOMKilled"), policy="OnFailure")
    status = seen(worker(), looping, restart_count=5)
    assert (status.phase, status.last_exit.exit_class) == (WorkerPhase.FAILED, ExitClass.OOM)


def test_07_a_member_that_waits_for_its_next_start_is_not_in_the_world() -> None:
    of = saying(AgentState.RUNNING)
    status = seen(of, pod_with(crash_loop(2, "bad", 0), policy="OnFailure"), restart_count=5)
    looping = of.model_copy(update={"status": status})
    member = participants_of(job(replicas=1), [looping], Ages())[0]
    assert not member.alive and member.gone_because == "main: CrashLoopBackOff: exit code 2: bad"


def test_08_a_finished_rank_whose_pod_goes_has_succeeded() -> None:
    finished = saying(AgentState.SUCCEEDED)
    for drained in (pod_with(RUNS, deleted=True), pod_with(ended(137), phase="Failed", deleted=True), None):
        status = seen(finished, drained)
        assert (status.phase, status.restarts) == (WorkerPhase.SUCCEEDED, {})
    lost = seen(finished, pod_with(RUNS), node_lost="node-0 is not ready")
    assert lost.phase is WorkerPhase.SUCCEEDED


def test_17_the_kubelets_word_of_an_eviction_comes_before_the_agents() -> None:
    said = saying(AgentState.FAILED, failure=failure(message="RuntimeError: killed by signal", cause="OOM"))
    evicted = seen(said, pod_with(ended(1), phase="Failed", reason="Evicted"))
    assert evicted.last_exit.exit_class is ExitClass.PREEMPTED


def test_20_an_init_container_out_of_memory_is_named_and_so_is_the_remedy() -> None:
    final = pod_with(STARTS, init=ended(137, "OOMKilled"), phase="Failed")
    end = seen(worker(phase=WorkerPhase.PENDING), final).last_exit
    assert (end.exit_class, end.container) == (ExitClass.OOM, "fetch")
    assert end.message == (
        "the init container fetch ran out of memory (limit 200Mi): raise its memory limit in the Pod template"
    )
