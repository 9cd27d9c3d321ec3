"""Node checks that the scenarios and the demo make, and the questions they ask about them."""

from __future__ import annotations

from collections.abc import Sequence

from dlr.job.check_outcome import rounds_of
from e2e import jobs
from e2e.api import Kind, Object
from e2e.cluster import Cluster
from e2e.observation import Observation

RATIO = 10.0
"""The highest that there is. Healthy virtual nodes share this machine's cores: beside other work, one pair
may well take three times as long as another, is tested again then, and makes a round more."""
FINISHED_SECONDS = 900.0
"""Time limit of waits for a check, which takes minutes where its rounds take long."""
TAINT = "elastic.iml.github.io/unhealthy"
CONDITION = "ElasticUnhealthy"


def node_check(spec: Object, name: str = "check") -> Object:
    """A NodeCheck; it asks less of healthy nodes than the default, unless `spec` says otherwise."""
    return {
        "apiVersion": Kind.CHECK.value.api_version,
        "kind": "NodeCheck",
        "metadata": {"name": name},
        "spec": {"stragglerRatio": RATIO, **spec},
    }


def wait_until_finished(
    observation: Observation, name: str = "check", within_seconds: float = FINISHED_SECONDS
) -> Object:
    """The check in the end, whatever that is."""

    def finished() -> Object | None:
        check = observation.objects(Kind.CHECK).get(name, {})
        return check if check.get("status", {}).get("phase") in ("Succeeded", "Failed") else None

    return observation.wait_for(f"node check {name} to finish", finished, within_seconds)


def verdicts(check: Object) -> dict[str, str]:
    return {result["node"]: result["verdict"] for result in check["status"].get("nodeResults", [])}


def groups(check: Object, number: int) -> dict[tuple[str, ...], bool]:
    """Return the groups of a finished round, each with whether it passed."""
    found = next(entry for entry in rounds_of(check["status"]) if entry["number"] == number)
    return {tuple(group["members"]): group["passed"] for group in found["groups"]}


def assert_only_those_with(check: Object, number: int, broken: str) -> None:
    """All nodes were tested in that round, with partners that the uid gives, and only its tests failed."""
    found = groups(check, number)
    assert sorted(node for members in found for node in members) == sorted(check["status"]["nodes"])
    assert found == {members: broken not in members for members in found}, found


def duration(check: Object) -> str:
    """How long it took, and how long its probes took, for whoever reads the test's output."""
    status = check["status"]
    made, ended = check["metadata"]["creationTimestamp"], status["completionTime"]
    rounds = len(status.get("rounds", []))
    return f"{jobs.seconds_between(made, ended):.0f} s from apply to verdict, in {rounds} rounds"


def probe_seconds(observation: Observation, check: Object) -> tuple[float, float]:
    """The longest that any node's probes took: its own, and those with others."""
    uid = check["metadata"]["uid"]
    said = [
        report
        for worker in observation.history[Kind.WORKER]
        if (report := (worker.get("status", {}).get("agent") or {}).get("check") or {}).get("uid") == uid
    ]
    local = [sum(probe["seconds"] for probe in report.get("local", [])) for report in said]
    pairs: dict[int, float] = {}
    for report in said:
        for pair in report.get("pairs", []):
            pairs[pair["round"]] = max(pairs.get(pair["round"], 0.0), pair["seconds"])
    return max(local, default=0.0), sum(pairs.values())


def node_names(cluster: Cluster) -> list[str]:
    api = cluster.api()
    try:
        return sorted(node["metadata"]["name"] for node in api.list(Kind.NODE)["items"])
    finally:
        api.close()


def node(cluster: Cluster, name: str) -> Object:
    api = cluster.api()
    try:
        return api.get(Kind.NODE, name)
    finally:
        api.close()


def is_cordoned(node: Object) -> bool:
    """Return whether a node check has cordoned it: taint and condition."""
    taints = [taint["key"] for taint in node["spec"].get("taints") or []]
    return TAINT in taints and jobs.condition(node, CONDITION).get("status") == "True"


def is_in_service(node: Object) -> bool:
    taints = [taint["key"] for taint in node["spec"].get("taints") or []]
    return TAINT not in taints and not node["spec"].get("unschedulable")


def wait_until_cordoned(cluster: Cluster, observation: Observation, name: str) -> None:
    what = f"node {name} to be cordoned"
    observation.wait_for(what, lambda: is_cordoned(node(cluster, name)))


def assert_in_service(cluster: Cluster, names: Sequence[str]) -> None:
    taken_out = [name for name in names if not is_in_service(node(cluster, name))]
    assert not taken_out, f"these nodes should be in service: {taken_out}"
