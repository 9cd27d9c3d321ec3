"""Slots of a world whose ElasticWorkers were deleted and are made again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS
from tests.reconcilers.api import Api
from tests.reconcilers.life import JOB, Run, beginning, edit, lose_pod, submit


def scale(api: Api, replicas: int) -> None:
    edit(api, {"replicaSpecs": {"worker": {"replicas": replicas, "minReplicas": None}}})


def delete_a_worker(api: Api) -> None:
    scale(api, 3)  # without minReplicas none is left out
    api.delete(ELASTICWORKERS, f"{JOB}-worker-1")


@pytest.mark.parametrize(
    "steps",
    [(lambda api: scale(api, 0), lambda api: scale(api, 3)), (delete_a_worker,)],
    ids=["scaled to none and back", "deleted by hand"],
)
async def test_the_agent_of_a_slot_that_is_made_again_does_not_take_itself_for_replaced(
    steps: tuple[Callable[[Api], None], ...],
) -> None:
    """The world that is given up still has the slot, as the incarnation that it had come to by then. Agents
    of earlier ones leave, and each of that counted as a failure."""
    api = beginning()
    submit(api)
    await Run(api).settle()
    for _ in range(2):
        lose_pod(api, 1)
        await Run(api).settle()
    for step in steps:
        step(api)
        await Run(api).settle()
    assert api.get(ELASTICJOBS, JOB)["status"]["phase"] == "Running"
    made_again = api.get(ELASTICWORKERS, f"{JOB}-worker-1")
    assert made_again["spec"]["incarnation"] == 4
    assert len(made_again["status"]["history"]) == 1, "its first Pod is in the world"
    assert api.get(ELASTICWORLDS, JOB)["spec"]["incarnations"]["4"] == "1"
