"""`make demo`: a cluster with a bad node, real training on it, and two things killed while it trains.

Ends with exit code 0 when the training came through and nothing is left running.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from e2e import checks, jobs
from e2e.api import Kind, Object
from e2e.cluster import Unavailable, default_kubectl
from e2e.embedded import EmbeddedCluster
from e2e.faults import Broken, NodeProbes
from e2e.observation import Observation
from e2e.screen import IN_SERVICE, NodeRow, Screen, WorkerRow

WORKERS = 3
NODES = 4
EPOCHS = 8
LAST_STEP = EPOCHS * jobs.STEPS_AN_EPOCH
STEP_DELAY_SECONDS = 0.07
STEPS_BETWEEN_BLOWS = 20
NODE_CHECK = {"enabled": True, "timeoutSeconds": 120, "stragglerRatio": checks.RATIO}
MEMORY = {"size": "4Mi", "replicas": 1}
CHECK_SECONDS = 90
TRAINING_SECONDS = 90
RECOVERY_SECONDS = 60
REFRESH_SECONDS = 0.2
NAMESPACE = "demo"
STATES = {
    "Ready": "waiting",
    "Running": "training",
    "Failed": "process died",
    "Succeeded": "done",
    "Stopped": "leaving",
}
VERDICTS = {
    "Healthy": "passed",
    "Faulty": "FAULTY",
    "Straggler": "passed, but slow",
    "Inconclusive": "could not tell",
}
TIERS = {"memory": "its Pods' memory", "peer": "another Pod's memory", "storage": "storage"}
TITLE = (
    "Three worker Pods learn to read handwritten digits, on a small Kubernetes\n"
    "cluster on this machine. One of its nodes is bad, and later a training\n"
    "process and a whole Pod are killed."
)


def main() -> int:
    try:
        default_kubectl()
        cluster = EmbeddedCluster(NODES)
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    with Screen(TITLE, LAST_STEP) as screen:
        try:
            screen.say(f"starting a cluster of {NODES} virtual nodes: dlr up --nodes {NODES}")
            cluster.start()
            with cluster.namespace(NAMESPACE) as observation, drawn(screen, cluster, observation):
                good = story(cluster, observation, screen)
        except AssertionError as failure:
            screen.say(str(failure), "red")
            good = False
        finally:
            screen.say("taking the cluster down: dlr down")
            cluster.stop()
        screen.say("the cluster is gone, and none of its processes is left", "green")
    return 0 if good else 1


def story(cluster: EmbeddedCluster, observation: Observation, screen: Screen) -> bool:
    """What is done to the job, and how it takes it; whether it came through."""
    namespace = observation.namespace
    manifest = jobs.digits(
        cluster,
        namespace,
        workers=WORKERS,
        epochs=EPOCHS,
        step_delay_seconds=STEP_DELAY_SECONDS,
        paced=True,
        example="digits",
        nodeCheck=NODE_CHECK,
    )
    manifest["spec"]["replicaSpecs"]["worker"]["memoryCheckpoint"] = MEMORY
    cluster.apply(jobs.one_a_node(manifest), namespace)
    screen.say(f"kubectl apply: job digits, {WORKERS} workers; their nodes are checked first")
    tell_node_check(cluster, observation, screen)
    world = jobs.wait_until_training(
        observation, WORKERS, beyond_step=STEPS_BETWEEN_BLOWS, within_seconds=TRAINING_SECONDS
    )
    screen.say("all three train together, and save every 5 steps to memory, and into another Pod's", "green")

    struck_at = datetime.now(UTC)
    victim = cluster.kill_process(namespace, jobs.current_pods(observation)[1])
    screen.say(f"kill -9 {victim.pid}: the training process in Pod digits-worker-1-1", "bold red")
    world = tell_recovery(observation, screen, world, struck_at)

    jobs.wait_until_training(
        observation, WORKERS, beyond_step=max(jobs.steps(observation)) + STEPS_BETWEEN_BLOWS
    )
    wait_for_replicas(observation, max(jobs.steps(observation)))
    struck_at = datetime.now(UTC)
    pod = jobs.current_pods(observation)[2]["metadata"]["name"]
    cluster.delete_pod(namespace, pod)
    screen.say(f"kubectl delete pod {pod} --grace-period=0", "bold red")
    tell_recovery(observation, screen, world, struck_at)

    jobs.hurry(cluster, observation)
    jobs.wait_until_succeeded(observation)
    accuracy = jobs.accuracy(cluster, observation)
    good = accuracy >= jobs.GOOD_ACCURACY
    screen.say(
        f"job Succeeded: {accuracy:.1%} of the test digits are read correctly",
        "bold green" if good else "bold red",
    )
    return good


def tell_node_check(cluster: EmbeddedCluster, observation: Observation, screen: Screen) -> None:
    """Break a worker's node, see the check find it, and where the worker goes instead."""
    victim = "digits-worker-2"
    bad = observation.wait_for(
        "the last worker to have a node", lambda: jobs.node_of(observation, f"{victim}-1"), CHECK_SECONDS
    )
    with Broken(NodeProbes(observation.namespace, bad, "gemm")):
        screen.say(f"{bad} is made a bad node: tests of computing on it get a kill -9", "bold red")
        made = observation.wait_for("a node check to be made", observation.checks, CHECK_SECONDS)
        check = checks.wait_until_finished(observation, made[0]["metadata"]["name"], CHECK_SECONDS)
        found = checks.verdicts(check)
        passed = [name for name, verdict in found.items() if verdict == "Healthy"]
        screen.say(f"the check has passed {' and '.join(passed)}", "green")
        for result in check["status"]["nodeResults"]:
            if result["verdict"] != "Healthy":
                verdict = VERDICTS[result["verdict"]]
                screen.say(f"{result['node']} is {verdict}: {result['message']}", "bold red")
        checks.wait_until_cordoned(cluster, observation, bad)
        screen.say(f"{bad} is cordoned: no new Pods until a later check passes it", "green")
    node = observation.wait_for(
        "the worker to have another node", lambda: jobs.node_of(observation, f"{victim}-2"), CHECK_SECONDS
    )
    screen.say(f"its worker starts again on {node}, which is checked before it joins", "green")


def tell_recovery(observation: Observation, screen: Screen, before: Object, struck_at: datetime) -> Object:
    """Wait until every worker has ended a step in a later world; say how long that took, and which it was."""

    def stepped_again() -> float | None:
        workers = observation.workers("digits")
        agents = [worker["status"]["agent"] for worker in workers if jobs.step_of(worker)]
        if len(agents) < WORKERS or any(agent["observedRound"] <= before["round"] for agent in agents):
            return None
        if "resume" not in jobs.rendezvous(observation):
            return None
        ends = [datetime.fromisoformat(agent["progress"]["time"]) for agent in agents]
        return (max(ends) - struck_at).total_seconds()

    seconds = observation.wait_for("the next step of all workers", stepped_again, RECOVERY_SECONDS)
    world = jobs.rendezvous(observation)
    rounds = [found for w in observation.workers("digits") for found in w["status"]["agent"]["rounds"]]
    last = max(found["lastStep"] for found in rounds if found["round"] == before["round"])
    first = min(found["firstStep"] for found in rounds if found["round"] > before["round"])
    screen.say(f"{seconds:.1f} s later all three have trained their next step", "green")
    again = max(last - first + 1, 0)
    screen.say(
        f"step {last} was the last before the kill, and training goes on with step {first}: "
        f"{again or 'no'} step{'s' * (again > 1)} made again, the checkpoint came from "
        f"{TIERS[world['resume']['tier']]}",
        "green",
    )
    return world


def wait_for_replicas(observation: Observation, step: int) -> None:
    """Each worker's checkpoint of that step or a later one is in another Pod's memory, too."""

    def replicated() -> bool:
        held = [worker["status"]["agent"].get("memory") or {} for worker in observation.workers("digits")]
        return all((memory.get("replicatedStep") or 0) >= step for memory in held)

    observation.wait_for("the copies in other Pods", replicated, RECOVERY_SECONDS)


@contextmanager
def drawn(screen: Screen, cluster: EmbeddedCluster, observation: Observation) -> Iterator[None]:
    """Keeps the tables on the screen up to date."""
    done = threading.Event()

    def draw() -> None:
        api = cluster.api()
        while not done.wait(REFRESH_SECONDS):
            made = observation.checks()
            screen.show(*rows(observation, made), node_rows(api.list(Kind.NODE)["items"], made))
        api.close()

    drawing = threading.Thread(target=draw, daemon=True)
    drawing.start()
    try:
        yield
    finally:
        done.set()
        drawing.join()


def node_rows(nodes: Iterable[Object], made: Iterable[Object]) -> list[NodeRow]:
    """What the node checks, in the order of their making, found out about the nodes."""
    said: dict[str, str] = {}
    for check in made:
        status = check.get("status", {})
        if is_unfinished(check):
            reused = status.get("reused", [])
            said |= {name: "is tested" for name in status.get("nodes", []) if name not in reused}
        said |= {found["node"]: VERDICTS[found["verdict"]] for found in status.get("nodeResults", [])}
    return [
        NodeRow(
            node["metadata"]["name"],
            said.get(node["metadata"]["name"], "not checked"),
            IN_SERVICE if checks.is_in_service(node) else "cordoned",
        )
        for node in nodes
    ]


def is_unfinished(check: Object) -> bool:
    return check.get("status", {}).get("phase") in ("Pending", "Running")


def rows(observation: Observation, made: Iterable[Object]) -> tuple[str, list[WorkerRow]]:
    """The world and its workers in words.

    Args:
        made: the node checks, whose state says why no world forms yet.
    """
    world = jobs.rendezvous(observation)
    title = "waiting for the workers to join"
    if any(is_unfinished(check) for check in made):
        title = "the workers wait while their nodes are tested"
    if world.get("phase") == "Formed":
        title = f"world {world['round']} of {len(world['members'])} workers"
    elif world.get("phase") == "Reforming":
        title = f"world {world['round']} is broken, the others wait for a replacement"
    shown = []
    for worker, step in zip(observation.workers("digits"), jobs.steps(observation), strict=True):
        status = worker.get("status", {})
        state = (status.get("agent") or {}).get("state", "")
        words = STATES.get(state, "starting") if step or state != "Running" else "starting"
        pod, node = status.get("podName") or "", status.get("nodeName") or ""
        if state == "Succeeded":
            step = LAST_STEP
        shown.append(WorkerRow(worker["spec"]["index"], pod, node, words, step))
    return title, shown


if __name__ == "__main__":
    sys.exit(main())
