"""`make demo`: a job trains, one of its processes is killed, and a node check finds a bad node meanwhile.

Ends with exit code 0 when the training came through and nothing is left running.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from crds.elasticworker import ElasticWorker
from dlr.job.check_outcome import rounds_of
from e2e import checks, jobs
from e2e.api import Kind, Object
from e2e.cluster import Unavailable, default_kubectl
from e2e.embedded import EmbeddedCluster
from e2e.faults import Broken, NodeProbes
from e2e.observation import Observation
from e2e.screen import IN_SERVICE, NodeRow, Screen, WorkerRow
from reconcilers.goodput.goodput import first_step_at

WORKERS = 3
NODES = 4
EPOCHS = 2 * jobs.CRAWLING_EPOCHS
"""Half of them at the pace of a demo: what happens meanwhile takes less time than that."""
LAST_STEP = EPOCHS * jobs.STEPS_AN_EPOCH
STEP_DELAY_SECONDS = 0.1
STEPS_BEFORE_KILL = 10
CHECK = "spare-node"
CHECK_SPEC = {"accelerator": "none", "timeoutSeconds": 120, "stragglerRatio": checks.RATIO}
MEMORY = {"size": "4Mi"}
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
    "Healthy": "healthy",
    "Faulty": "FAULTY",
    "Straggler": "slow",
    "Inconclusive": "inconclusive",
}
TIERS = {"memory": "memory", "peer": "another Pod's memory", "storage": "storage"}
TITLE = (
    "A small Kubernetes cluster on this machine, with dlr. A job with three workers learns to\n"
    "read handwritten digits; one of its training processes is killed, and the job goes on.\n"
    "The fourth node goes bad: a node check finds it before it gets a Pod."
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
            screen.say(f"dlr up --nodes {NODES}")
            cluster.start()
            with cluster.namespace(NAMESPACE) as observation, drawn(screen, cluster, observation):
                show_training(cluster, observation, screen)
                show_node_check(cluster, observation, screen)
                good = show_end(cluster, observation, screen)
        except AssertionError as failure:
            screen.say(str(failure), "red")
            good = False
        finally:
            screen.say("dlr down")
            cluster.stop()
        screen.say("The cluster has stopped, and no process of it is left.", "green")
    return 0 if good else 1


def show_node_check(cluster: EmbeddedCluster, observation: Observation, screen: Screen) -> None:
    """Break a test of the node that has no worker, and show how the node check finds it."""
    workers = {pod["spec"]["nodeName"] for pod in jobs.current_pods(observation)}
    (bad,) = sorted({*checks.node_names(cluster)} - workers)
    screen.say(f"{bad} goes bad: a test with another node crashes on it.", "bold red")
    spec = {**CHECK_SPEC, "nodes": [max(workers), bad]}
    with Broken(NodeProbes(observation.namespace, bad, "pair")):
        cluster.apply(checks.node_check(spec, CHECK), observation.namespace)
        screen.say(f"kubectl apply: NodeCheck {CHECK}. Two nodes test themselves, then each other.")
        check = show_rounds(observation, screen)
    for result in check["status"]["nodeResults"]:
        if result["verdict"] != "Healthy":
            verdict = VERDICTS[result["verdict"]].lower()
            screen.say(f"The check finds {result['node']} {verdict}: {result['message']}.", "bold red")
    checks.wait_until_cordoned(cluster, observation, bad)
    screen.say(f"{bad} is cordoned: it gets no Pods.", "green")


def show_rounds(observation: Observation, screen: Screen) -> Object:
    """Show each round of the check when it has finished; return the finished check."""
    shown = 0
    while True:
        check = observation.wait_for("the next round of the check", partial(_news, observation, shown))
        for done in rounds_of(check["status"])[shown:]:
            groups = [
                " with ".join(g["members"]) + (" passes" if g["passed"] else " fails") for g in done["groups"]
            ]
            screen.say(f"Round {done['number']}: {', '.join(groups)}.")
            shown = done["number"]
        if not is_unfinished(check):
            return check


def _news(observation: Observation, shown: int) -> Object | None:
    check = observation.objects(Kind.CHECK).get(CHECK, {})
    status = check.get("status", {})
    is_news = status.get("phase") in ("Succeeded", "Failed") or len(status.get("rounds") or ()) > shown
    return check if is_news else None


def show_training(cluster: EmbeddedCluster, observation: Observation, screen: Screen) -> None:
    """Train a job, kill one of its processes, and show what that cost."""
    namespace = observation.namespace
    manifest = jobs.digits(
        cluster,
        namespace,
        workers=WORKERS,
        epochs=EPOCHS,
        step_delay_seconds=STEP_DELAY_SECONDS,
        paced=True,
        example="digits",
    )
    manifest["spec"]["replicaSpecs"]["worker"]["memoryCheckpoint"] = MEMORY
    cluster.apply(jobs.one_a_node(manifest), namespace)
    screen.say(f"kubectl apply: ElasticJob digits, {WORKERS} workers, each on a node of its own.")
    jobs.wait_until_training(observation, WORKERS, beyond_step=0)
    screen.say("The workers train together. Each step is saved to memory.", "green")
    world = jobs.wait_until_training(observation, WORKERS, beyond_step=STEPS_BEFORE_KILL)

    struck_at = datetime.now(UTC)
    victim = cluster.kill_process(namespace, jobs.current_pods(observation)[1])
    screen.say(f"kill -9 {victim.pid}: the training process of worker 1.", "bold red")
    show_recovery(observation, screen, world, struck_at)


def show_end(cluster: EmbeddedCluster, observation: Observation, screen: Screen) -> bool:
    """Let the job make the rest of its steps, and show what it has learned; whether that is well."""
    jobs.hurry(cluster, observation)
    jobs.wait_until_succeeded(observation)
    accuracy = jobs.accuracy(cluster, observation)
    good = accuracy >= jobs.GOOD_ACCURACY
    screen.say(
        f"The job has succeeded: it reads {accuracy:.1%} of the test digits correctly.",
        "bold green" if good else "bold red",
    )
    return good


def show_recovery(observation: Observation, screen: Screen, before: Object, struck_at: datetime) -> None:
    """Wait until every worker has ended a step in a later world; show how long that took, and the cost."""

    def stepped_again() -> float | None:
        world = jobs.rendezvous(observation)
        if world["round"] <= before["round"] or "resume" not in world:
            return None
        workers = [ElasticWorker.model_validate(worker) for worker in observation.workers("digits")]
        ends = [end for worker in workers if (end := first_step_at(world["round"], [worker]))]
        return (max(ends) - struck_at).total_seconds() if len(ends) == WORKERS else None

    seconds = observation.wait_for("the next step of all workers", stepped_again)
    tier = TIERS[jobs.rendezvous(observation)["resume"]["tier"]]
    rounds = [found for w in observation.workers("digits") for found in w["status"]["agent"]["rounds"]]
    last = max(found["lastStep"] for found in rounds if found["round"] == before["round"])
    first = min(found["firstStep"] for found in rounds if found["round"] > before["round"])
    screen.say(f"{seconds:.2f} s later all three have made their next step, from {tier}.", "green")
    screen.say(f"The kill cost {cost(last, first)}.", "green")


def cost(last: int, first: int) -> str:
    """Return in words what is trained again, by the last step of a round and the first of the next."""
    if first > last:
        return f"no step: step {last} was the last before it, and step {first} is the next"
    if first == last:
        return f"1 step: all train step {first} again"
    return f"{last - first + 1} steps: all train steps {first} to {last} again"


@contextmanager
def drawn(screen: Screen, cluster: EmbeddedCluster, observation: Observation) -> Iterator[None]:
    """Keep the table on the screen up to date."""
    done = threading.Event()

    def draw() -> None:
        api = cluster.api()
        while not done.wait(REFRESH_SECONDS):
            check = observation.objects(Kind.CHECK).get(CHECK, {})
            screen.show(*rows(observation), node_rows(api.list(Kind.NODE)["items"], check))
        api.close()

    drawing = threading.Thread(target=draw, daemon=True)
    drawing.start()
    try:
        yield
    finally:
        done.set()
        drawing.join()


def node_rows(nodes: Iterable[Object], check: Object) -> list[NodeRow]:
    """Return what the node check found out about the nodes."""
    status = check.get("status", {})
    found = dict.fromkeys(status.get("nodes", []) if is_unfinished(check) else [], "being tested")
    found |= {result["node"]: VERDICTS[result["verdict"]] for result in status.get("nodeResults", [])}
    return [
        NodeRow(
            node["metadata"]["name"],
            found.get(node["metadata"]["name"], "not checked"),
            IN_SERVICE if checks.is_in_service(node) else "cordoned",
        )
        for node in nodes
    ]


def is_unfinished(check: Object) -> bool:
    return check.get("status", {}).get("phase") in ("Pending", "Running")


def rows(observation: Observation) -> tuple[str, list[WorkerRow]]:
    """Return the state of the job, and of its workers, in words."""
    world = jobs.rendezvous(observation)
    title = ""
    if world.get("phase") == "Formed":
        title = f"{len(world['members'])} workers train together, in round {world['round']}"
    elif world.get("phase") == "Reforming":
        title = f"round {world['round']} has ended, the workers meet again"
    elif observation.job("digits"):
        title = "the workers start"
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
