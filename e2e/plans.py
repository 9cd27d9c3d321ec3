"""ScalePlans that the scenarios make, and how they end."""

from __future__ import annotations

from collections.abc import Sequence

from e2e import jobs
from e2e.api import Kind, Object
from e2e.observation import Observation

ENDED = ("Succeeded", "Failed", "Superseded")


def scale_plan(
    name: str,
    *,
    job: str = "idle",
    type_: str = "worker",
    replicas: int | None = None,
    resource: Object | None = None,
    remove: Sequence[str] = (),
    migrate: Sequence[str] = (),
) -> Object:
    """A manual plan; what is not given is not asked for."""
    asked: Object = {"resource": resource} if resource else {}
    if replicas is not None:
        asked["replicas"] = replicas
    spec: Object = {"ownerJob": job}
    if asked:
        spec["replicaResourceSpecs"] = {type_: asked}
    if remove:
        spec["removePods"] = [{"name": pod} for pod in remove]
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


def wait_until_ended(observation: Observation, name: str, within_seconds: float = 60) -> Object:
    """The plan in the end, whatever that is."""

    def ended() -> Object | None:
        plan = observation.objects(Kind.PLAN).get(name, {})
        return plan if phase(observation, name) in ENDED else None

    return observation.wait_for(f"scale plan {name} to end", ended, within_seconds)


def wait_until_succeeded(observation: Observation, name: str, within_seconds: float = 60) -> None:
    plan = wait_until_ended(observation, name, within_seconds)
    assert plan["status"]["phase"] == "Succeeded", observation.describe()


def seconds(plan: Object) -> float:
    """Return the seconds from the plan's creation to its end."""
    return jobs.seconds_between(plan["metadata"]["creationTimestamp"], plan["status"]["finishTime"])
