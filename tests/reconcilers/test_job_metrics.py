"""What /metrics says of jobs and workers, from the objects in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from crds.agent_report import AgentState
from crds.job_spec import ElasticPolicy
from crds.model import Model
from reconcilers.metrics import DEFINITIONS, JobMetrics
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.setup import add_indexes
from tests.counting import calls
from tests.reconcilers.build import NOW, job, later, report, worker
from tests.reconcilers.caches import shaped_cache


class Scraped:
    """A cache that a test fills, and what is read of it at `now`."""

    def __init__(self) -> None:
        self.cache = shaped_cache(None)
        add_indexes(self.cache)
        self.now = NOW
        self.leads = True
        self.version = 0
        self.registry = CollectorRegistry()
        self.registry.register(JobMetrics(self.cache, Clock(now=lambda: self.now), lambda: self.leads))

    def put(self, *objects: Model) -> None:
        for each in objects:
            store = ELASTICJOBS if type(each).__name__ == "ElasticJob" else ELASTICWORKERS
            raw = each.model_dump(mode="json", by_alias=True, exclude_none=True)
            self.version += 1
            raw["metadata"]["resourceVersion"] = str(self.version)
            self.cache.store(store).apply(raw)

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        """By name, then by the values of the labels, sorted by their names, without namespace and job."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in parse_text(generate_latest(self.registry).decode()):
            for sample in family.samples:
                labels = {k: v for k, v in sample.labels.items() if k not in ("namespace", "job_name")}
                assert sample.labels["namespace"] == "default"
                assert sample.labels["job_name"] == "digits"
                found.setdefault(sample.name, {})[tuple(labels[k] for k in sorted(labels))] = sample.value
        return found


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    yield Scraped()


FORMED = {"round": 3, "phase": "Formed", "members": [0, 1], "incarnations": [1, 1], "worldSize": 16}
GOODPUT = {
    "state": "Training",
    "since": NOW.isoformat(),
    "seconds": {"Pending": 12.5, "Training": 100.0},
    "firstStep": 1,
    "lastStep": 70,
    "stepsRedone": 4,
    "stepsTimed": 60,
    "steppingSeconds": 90.0,
    "ratio": 0.9,
}
"""70 steps kept, of 1.5 s each, are 105 s of effective training."""


def running_job(**status: Any) -> Any:
    shown = {
        "phase": "Running",
        "rendezvous": FORMED,
        "restarts": {"UserError": 2, "Hang": 1},
        "failures": {"UserError": 2, "Hang": 1, "OOM": 1},
        "replicaStatuses": {"worker": {"desired": 3, "active": 2, "pending": 1}},
        "goodput": GOODPUT,
    }
    return job(status=shown | status)


def test_job_is_told_as_its_status_says(scraped: Scraped) -> None:
    scraped.put(running_job())
    found = scraped.samples()
    assert found["dlr_job_phase"][("Running",)] == 1
    assert sum(found["dlr_job_phase"].values()) == 1 and len(found["dlr_job_phase"]) == 7
    assert found["dlr_job_state"][("Training",)] == 1 and sum(found["dlr_job_state"].values()) == 1
    assert found["dlr_job_restarts"] == {(): 3}
    failures = {("UserError",): 2, ("Hang",): 1, ("OOM",): 1}
    assert {k: v for k, v in found["dlr_job_failures"].items() if v} == failures
    assert len(found["dlr_job_failures"]) == 10, "zeros too, so that the first failure is an increase"
    assert found["dlr_job_round"] == {(): 3}
    assert (found["dlr_job_world_size"], found["dlr_job_world_workers"]) == ({(): 16}, {(): 2})
    assert found["dlr_job_desired_workers"] == {("worker",): 3}
    assert found["dlr_job_workers"][("active", "worker")] == 2
    assert found["dlr_job_workers"][("pending", "worker")] == 1
    assert found["dlr_job_steps_redone_total"] == {(): 4}
    assert found["dlr_job_step"] == {(): 70}


def test_numbers_of_rank_0_and_warnings_are_told(scraped: Scraped) -> None:
    told = {"round": 3, "firstStep": 1, "lastStep": 20}
    point = {"step": 20, "time": NOW.isoformat(), "worldSize": 16, "secondsPerStep": 0.1}
    numbers = {"loss": 2.5, "lr": 0.1}
    said = report(
        0, observed_round=3, rounds=[told], series={"latest": point | {"numbers": numbers}}
    ).to_wire()
    scraped.put(running_job(), worker(0, agent=said), worker(1, agent=report(1).to_wire()))
    found = scraped.samples()
    assert found["dlr_job_number"] == {("loss",): 2.5, ("lr",): 0.1} and "dlr_job_warning" not in found
    warnings = [{"type": type_, "message": "…", "since": NOW.isoformat()} for type_ in ("Slow", "NoSteps")]
    scraped.put(running_job(warnings=warnings))
    assert scraped.samples()["dlr_job_warning"] == {("Slow",): 1, ("NoSteps",): 1}
    scraped.put(running_job(warnings=warnings, phase="Failed"))
    assert "dlr_job_warning" not in scraped.samples(), "nothing is to be done about it any more"


def test_a_job_with_replica_groups_counts_no_worker_of_theirs(scraped: Scraped) -> None:
    groups = [
        {"index": 0, "phase": "Running"},
        {"index": 1, "phase": "Restarting"},
        {"index": 2, "phase": "Failed"},
    ]
    membership = {"version": 7, "groups": [{"index": 0, "round": 1}]}
    whole = running_job(groups=groups, membership=membership)
    spec = {"elastic_policy": ElasticPolicy.model_validate({"replicaGroups": {"workers": 1}})}
    scraped.put(whole.model_copy(update={"spec": whole.spec.model_copy(update=spec)}))
    found = scraped.samples()
    assert found["dlr_job_groups"] == {("training",): 1, ("waiting",): 1, ("ended",): 1}
    assert found["dlr_job_membership_version"] == {(): 7}
    assert found["dlr_job_phase"][("Running",)] == 1
    assert not {"dlr_job_desired_workers", "dlr_job_workers", "dlr_job_restarts"} & {*found}


def test_goodput_is_as_of_now(scraped: Scraped) -> None:
    running = running_job()
    metadata = running.metadata.model_copy(update={"creation_timestamp": later(-140)})
    scraped.put(running.model_copy(update={"metadata": metadata}))
    assert scraped.samples()["dlr_job_goodput_ratio"] == {(): 0.75}
    scraped.now = later(70)
    assert scraped.samples()["dlr_job_goodput_ratio"] == {(): 0.5}


def test_time_in_the_current_state_runs_on_until_the_job_ends(scraped: Scraped) -> None:
    scraped.put(running_job())
    scraped.now = later(7)
    seconds = scraped.samples()["dlr_job_state_seconds"]
    assert seconds[("Training",)] == 107.0
    assert seconds[("Pending",)] == 12.5
    assert seconds[("Down",)] == 0.0, "there from the start, so that a difference begins there"
    scraped.put(running_job(phase="Succeeded", completionTime=later(5).isoformat()))
    scraped.now = later(1000)
    found = scraped.samples()
    assert found["dlr_job_state_seconds"][("Training",)] == 105.0
    assert found["dlr_job_goodput_ratio"] == {(): 0.9}
    assert sum(found["dlr_job_state"].values()) == 0, "its time goes to nothing any more"
    assert (found["dlr_job_world_size"], found["dlr_job_world_workers"]) == ({(): 0}, {(): 0})


def test_world_that_is_being_given_up_trains_nobody(scraped: Scraped) -> None:
    scraped.put(running_job(rendezvous=FORMED | {"phase": "Reforming"}))
    found = scraped.samples()
    assert (found["dlr_job_world_size"], found["dlr_job_world_workers"]) == ({(): 0}, {(): 0})
    assert found["dlr_job_round"] == {(): 3}


def test_new_job_is_pending_and_has_no_goodput(scraped: Scraped) -> None:
    scraped.put(job())
    found = scraped.samples()
    assert found["dlr_job_phase"][("Pending",)] == 1
    assert found["dlr_job_restarts"] == {(): 0}
    assert found["dlr_job_state"][("Pending",)] == 1
    assert "dlr_job_goodput_ratio" not in found and "dlr_job_step" not in found


def agent(index: int = 0, **said: Any) -> Any:
    progress = {"step": 71, "time": later(-3).isoformat(), "secondsPerStep": 0.25}
    rounds = [{"round": 3, "firstStep": 60, "lastStep": 71, "steppingSeconds": 16.5}]
    fields = {"progress": progress, "rounds": rounds} | said
    return report(index, AgentState.RUNNING, 3, **fields)


def test_worker_is_told_as_its_agent_says(scraped: Scraped) -> None:
    scraped.put(
        running_job(),
        worker(0, agent=agent(0), restarts={"Preempted": 5}),
        worker(1, agent=agent(1, progress=None)),
    )
    found = scraped.samples()
    first = ("digits-worker-0",)
    assert found["dlr_worker_step"] == {first: 71}
    assert found["dlr_worker_step_timestamp_seconds"] == {first: (NOW - timedelta(seconds=3)).timestamp()}
    assert found["dlr_worker_step_duration_seconds"] == {first: 0.25}
    assert found["dlr_worker_restarts_total"] == {("Preempted", *first): 5}
    assert found["dlr_job_step"] == {(): 71}, "fresher than what the job's status says"


@pytest.mark.parametrize("stale", [{"incarnation": 2}, {"pod_uid": "another"}])
def test_last_words_of_an_earlier_pod_are_not_told(scraped: Scraped, stale: dict[str, Any]) -> None:
    scraped.put(running_job(), worker(0, agent=agent(0, **stale)))
    found = scraped.samples()
    assert "dlr_worker_step" not in found


def test_who_does_not_lead_tells_nothing(scraped: Scraped) -> None:
    scraped.put(running_job(), worker(0, agent=agent(0)))
    scraped.leads = False
    assert scraped.samples() == {}
    assert "# TYPE dlr_job_phase gauge" in generate_latest(scraped.registry).decode()


def test_what_is_deleted_is_gone_with_the_next_scrape(scraped: Scraped) -> None:
    scraped.put(running_job(), worker(0, agent=agent(0)))
    assert scraped.samples()
    for resource in (ELASTICJOBS, ELASTICWORKERS):
        list(scraped.cache.store(resource).replace_stepwise([]))
    assert scraped.samples() == {}


def test_job_that_cannot_be_read_hides_no_other(scraped: Scraped) -> None:
    broken = job("broken").model_dump(mode="json", by_alias=True, exclude_none=True)
    broken["spec"]["replicaSpecs"]["worker"]["replicas"] = "many"
    scraped.cache.store(ELASTICJOBS).apply(broken)
    scraped.put(running_job())
    assert scraped.samples()["dlr_job_round"] == {(): 3}


def test_both_formats_can_be_parsed_and_have_units(scraped: Scraped) -> None:
    scraped.put(running_job(), worker(0, agent=agent(0), restarts={"OOM": 1}))
    families = {f.name: f for f in parse_openmetrics(generate_openmetrics(scraped.registry).decode())}
    assert {f.name for f in DEFINITIONS} == {
        name + ("_total" if f.type == "counter" else "") for name, f in families.items()
    }
    assert families["dlr_job_state_seconds"].unit == "seconds"
    assert families["dlr_job_state_seconds"].type == "gauge", "time of a late failure moves to another state"
    assert families["dlr_job_goodput_ratio"].unit == "ratio"
    assert families["dlr_worker_step_duration_seconds"].unit == "seconds"
    assert families["dlr_job_round"].unit == ""


def test_a_page_grows_with_the_number_of_workers_and_no_faster() -> None:
    def page(workers: int) -> int:
        scraped = Scraped()
        scraped.put(running_job(), *(worker(i, agent=agent(i), restarts={"OOM": 1}) for i in range(workers)))
        return calls(lambda: generate_latest(scraped.registry))

    assert page(500) < 11 * page(50)
