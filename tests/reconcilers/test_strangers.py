"""Objects that have the names of a job's own and are not its own."""

from __future__ import annotations

from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS
from tests.reconcilers.api import Api
from tests.reconcilers.life import JOB, Run, beginning, submit


async def settled(api: Api) -> str:
    """Play on with a new controller; return the job's phase."""
    run = Run(api)
    await run.settle()
    assert run.errors == []
    phase: str = api.get(ELASTICJOBS, JOB)["status"]["phase"]
    return phase


def delete_as_orphans(api: Api) -> None:
    """Delete the job alone, as `kubectl delete --cascade=orphan` does."""
    for resource in (ELASTICWORKERS, ELASTICWORLDS):
        for obj in api.list(resource):
            metadata = {key: value for key, value in obj["metadata"].items() if key != "ownerReferences"}
            api._put(resource, obj | {"metadata": metadata})
    api.delete(ELASTICJOBS, JOB)


async def test_a_job_says_that_orphans_have_the_names_of_its_workers() -> None:
    api = beginning()
    submit(api)
    assert await settled(api) == "Running"
    delete_as_orphans(api)
    submit(api)
    assert await settled(api) == "Pending"
    status = api.get(ELASTICJOBS, JOB)["status"]
    whose = " ".join(f"{JOB}-worker-{index}" for index in range(3))
    assert status["reason"] == "NamesTaken"
    assert status["message"].endswith(f"kubectl delete elasticworkers -n default {whose}")
    (ready,) = (each for each in status["conditions"] if each["type"] == "WorkersReady")
    assert (ready["status"], ready["reason"]) == ("False", "NamesTaken")
    (told,) = (event.message for event in api.events if event.reason == "NamesTaken")
    assert told == status["message"]
    for orphan in api.list(ELASTICWORKERS):
        api.delete(ELASTICWORKERS, orphan["metadata"]["name"])
    assert await settled(api) == "Running"
