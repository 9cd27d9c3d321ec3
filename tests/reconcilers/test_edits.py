"""When it is told that Pods were made of an earlier template."""

from __future__ import annotations

from crds.elasticjob import ElasticJob
from reconcilers.conditions.pods import TEMPLATE_CHANGED
from reconcilers.observed.conditions import observed_at
from tests.reconcilers.build import job
from tests.reconcilers.judging import judge
from tests.reconcilers.life import Run, beginning, edit, submit


class Looks:
    """One after the other at a job, of which each may see a newer generation."""

    def __init__(self) -> None:
        self.job = job()

    def see(self, outdated: int, pods: int = 2) -> int:
        """How many Events this look tells."""
        after, events = judge(
            self.job, TEMPLATE_CHANGED, outdated_pods=outdated, pods=dict.fromkeys(map(str, range(pods)))
        )
        status = observed_at(after.status, after.metadata.generation)
        self.job = after.model_copy(update={"status": status})
        return len(events)

    def edit(self) -> ElasticJob:
        raised = {"generation": self.job.metadata.generation + 1}
        metadata = self.job.metadata.model_copy(update=raised)
        self.job = self.job.model_copy(update={"metadata": metadata})
        return self.job


def test_an_edit_is_told_once_though_others_of_the_spec_follow_while_it_waits() -> None:
    looks = Looks()
    looks.edit()
    assert looks.see(2) == 1
    assert looks.see(2) == 0
    looks.edit()  # of the scale
    assert looks.see(2, pods=3) == 0
    assert looks.see(1, pods=3) == 0, "a Pod follows"
    looks.edit()
    assert looks.see(3, pods=3) == 1, "another edit concerns Pods that had the one before"


def test_the_next_edit_is_told_when_the_last_one_is_in_all_pods() -> None:
    looks = Looks()
    assert [looks.see(12, 12), looks.see(9, 12), looks.see(0), looks.see(1)] == [1, 0, 0, 1]


async def test_a_type_that_is_removed_is_no_edit_of_a_template() -> None:
    api = beginning()
    submit(api)
    for evaluator in ({"replicas": 1, "template": {"spec": {"containers": [{"name": "main"}]}}}, None):
        edit(api, {"replicaSpecs": {"evaluator": evaluator}})
        await Run(api).settle()
    assert TEMPLATE_CHANGED not in {event.reason for event in api.events}
