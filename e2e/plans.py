"""ScalePlans that the scenarios make, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence

from e2e import jobs
from e2e.api import Kind, Object
from e2e.observation import Observation


def scale_plan(
    name: str,
    *,
    job: str = "idle",
    type_: str = "worker",
    replicas: int | None = None,
    resource: Object | None = None,
    migrate: Sequence[str] = (),
) -> Object:
    """A manual plan; what is not given is not asked for."""
    asked: Object = {"resource": resource} if resource else {}
    if replicas is not None:
        asked["replicas"] = replicas
    spec: Object = {"ownerJob": job}
    if asked:
        spec["replicaResourceSpecs"] = {type_: asked}
    if migrate:
        spec["migratePods"] = [{"name": pod} for pod in migrate]
    return {
        "apiVersion": Kind.PLAN.value.api_version,
        "kind": "ScalePlan",
        "metadata": {"name": name, "labels": {"scale-type": "manual"}},
        "spec": spec,
    }


def phase(observation: Observation, name: str) -> str:
    return str(observation.objects(Kind.PLAN).get(name, {}).get("status", {}).get("phase") or "")


def wait_for_verdict(observation: Observation, name: str) -> Object:
    """Wait until the plan has one, whatever it is. Returns the plan."""

    def judged() -> Object | None:
        return observation.objects(Kind.PLAN).get(name) if phase(observation, name) else None

    return observation.wait_for(f"a verdict on scale plan {name}", judged)


def wait_until_scaled(observation: Observation, name: str) -> Object:
    """Wait until the plan is applied and its job has all that it asked for. Returns the job."""
    plan = wait_for_verdict(observation, name)
    assert plan["status"]["phase"] == "Applied", observation.describe()
    owner = plan["spec"]["ownerJob"]

    def scaled() -> Object | None:
        job = observation.job(owner)
        return job if jobs.condition(job, "Scaled").get("status") == "True" else None

    return observation.wait_for(f"what scale plan {name} asked", scaled)
