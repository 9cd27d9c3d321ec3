"""What the controller costs at 100 to 10,000 workers, in CPU seconds, and how that grows: docs/scale.md.

All controllers run over a cluster in memory (virtual_cluster.py) in virtual time, in which they have one
processor for themselves. Each cell of the table is measured by a process of its own, which ends when it has
used up its budget of CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import orjson
import prometheus_client

from benchmarks import virtual_time
from benchmarks.scale_report import FIT_FROM, Figures, conditions, tables
from benchmarks.virtual_cluster import LATENCY_SECONDS, NAMESPACE, ApiServer, VirtualController
from benchmarks.virtual_nodes import (
    AGENT_START_SECONDS,
    ONE_BAD_NODE_IN,
    PODS_A_SECOND,
    RESTART_SECONDS,
    VirtualNodes,
    add_nodes,
)
from benchmarks.virtual_time import running_loop
from controller.cache import Cache
from controller.garbage import keep_pauses_short
from controller.reconciler import Request
from controller.resources import ELASTICJOBS, ELASTICWORKERS, LEASES, NODECHECKS, SCALEPLANS, Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.protocol import AgentState
from reconcilers.elasticjob import ElasticJobReconciler
from reconcilers.pod.builder import heartbeat_seconds

REPORT = Path(__file__).parent.parent / "docs" / "scale.md"
FIGURES = REPORT.with_suffix(".json")
"""What was measured so far: a run replaces its own cells."""
BRACKETS = "In brackets: the same at 56915f2."
ALONE = "This is 56915f2, with which what comes next is to be compared."
SIZES = (100, 1_000, 3_000, 10_000)
BUDGET_SECONDS = 60.0
LONGEST_CELL_SECONDS = 3_600.0
"""Of real time, on a busy machine."""
JOB = "big"
STEPS_OF_A_ROLL = 10
RACK = 40
LARGEST_JOB = 7_000
BEATS = 100
"""In so many portions come the heartbeats of one period."""
HEARTBEAT_TIMEOUT_SECONDS = 30.0
LOOKS_TO_FORM = 3
QUIET_SECONDS = 3.0
PATIENCE_SECONDS = 3_600.0

Cell = Callable[["Fleet"], Awaitable[None]]


def computed_seconds() -> float:
    """CPU seconds of the controller so far, its threads included."""
    return time.process_time() - running_loop().outside_seconds


def tell(section: str, **figures: float | None) -> None:
    """One line for the process that collects; None for what went beyond the budget."""
    print(json.dumps({f"{section}/{name}": figure for name, figure in figures.items()}), flush=True)


class Budget:
    """Ends this process when the controller has computed for longer, in what is being measured."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._section: str | None = None
        self._began = 0.0

    def watch(self) -> None:
        signal.signal(signal.SIGPROF, self._check)
        signal.setitimer(signal.ITIMER_PROF, 1.0, 1.0)

    @contextmanager
    def of(self, section: str) -> Iterator[None]:
        self._section, self._began = section, computed_seconds()
        yield
        self._section = None

    def _check(self, _signal: int, _frame: FrameType | None) -> None:
        if self._section is not None and computed_seconds() - self._began > self._seconds:
            tell(self._section, cpu=None)
            os._exit(0)


class Fleet:
    """One job with everything around it."""

    def __init__(self, size: int, budget: Budget) -> None:
        self.size = size
        self._budget = budget
        self.server = ApiServer()
        with running_loop().outside():
            add_nodes(self.server, size)
        self.nodes = VirtualNodes(self.server, size)
        self.controller = VirtualController(self.server)

    @contextmanager
    def measured(self, section: str) -> Iterator[None]:
        """Tells what the controller spends in this block."""
        gc.collect()
        loop, server = running_loop(), self.server
        looks, writes = self.controller.looks("elasticjob"), server.controller_writes
        began = loop.time()
        loop.longest_stretch_seconds()
        with self._budget.of(section):
            computed = computed_seconds()
            yield
            computed = computed_seconds() - computed
        tell(
            section,
            cpu=computed,
            stretch=loop.longest_stretch_seconds(),
            looks=self.controller.looks("elasticjob") - looks,
            writes=(server.controller_writes - writes) / self.size,
            refused=server.refused,
            virtual=loop.time() - began,
        )

    async def trains(self) -> None:
        """A job of which all workers train. They are put there: to make them is another cell's matter."""
        with running_loop().outside():
            job = self.submit()
            parsed = ElasticJob.model_validate(job)
            for index in range(self.size):
                self.nodes.place(parsed, worker_of(job, index))
        controller, reconciler = self.controller, self.job_reconciler()
        await controller.start_watching()
        controller.start(without=["elasticjob"])
        await self.is_quiet()
        for _ in range(LOOKS_TO_FORM):
            await reconciler.reconcile(Request(NAMESPACE, JOB))
            await asyncio.sleep(2 * RESTART_SECONDS)
        controller.start()
        await self.is_training()

    def job_reconciler(self) -> ElasticJobReconciler:
        """Another one, which nothing wakes."""
        made = self.controller
        return ElasticJobReconciler(made.client, made.cache, made.recorder, made.clock)

    def submit(self) -> Object:
        return self.server.create(ELASTICJOBS, job_of(self.size))

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = running_loop().time() + PATIENCE_SECONDS
        while True:
            with running_loop().outside():
                if condition():
                    return
            if running_loop().time() > deadline:
                status = (self.server.get(ELASTICJOBS, JOB) or {}).get("status", {})
                raise TimeoutError(f"not within {PATIENCE_SECONDS:g} s: {what}; {str(status)[:2000]}")
            await asyncio.sleep(0.25)

    async def is_quiet(self) -> None:
        """Until the controller has written nothing for a while."""
        before = -1
        while (writes := self.server.controller_writes) != before:
            before = writes
            await asyncio.sleep(QUIET_SECONDS)

    async def is_training(self) -> None:
        await self.until(lambda: self.nodes.all_in(AgentState.RUNNING, self.size), "all train")
        await self.is_quiet()
        await self.until(lambda: self.nodes.all_in(AgentState.RUNNING, self.size), "all train")

    async def beats_for(self, seconds: float, silent: str = "") -> None:
        """All Leases are renewed for a while, evenly spread, but for that of one worker."""
        period, loop = heartbeat_seconds(self.size, HEARTBEAT_TIMEOUT_SECONDS), running_loop()
        end, workers = loop.time() + seconds, [worker for worker in self.nodes.agents if worker != silent]
        for number in itertools.cycle(range(BEATS)):
            if loop.time() > end:
                return
            await asyncio.sleep(period / BEATS)
            with loop.outside():
                for worker in workers[number::BEATS]:
                    self.nodes.renew(worker)

    async def roll(self, number: int = 1) -> None:
        """New resources for all workers, from the ScalePlan to its end."""
        memory = {"memory": f"{16 + number}Gi"}
        plan = {
            "metadata": {"name": f"roll-{number}", "labels": {"scale-type": "manual"}},
            "spec": {"ownerJob": JOB, "replicaResourceSpecs": {"worker": {"resource": memory}}},
        }
        with running_loop().outside():
            self.server.create(SCALEPLANS, plan)

        def succeeded() -> bool:
            raw = self.server.get(SCALEPLANS, f"roll-{number}") or {}
            phase = raw.get("status", {}).get("phase")
            assert phase not in ("Failed", "Superseded"), raw["status"]
            return bool(phase == "Succeeded")

        await self.until(succeeded, f"roll {number} is done")
        await self.is_training()

    def job_bytes(self) -> int:
        job = self.server.get(ELASTICJOBS, JOB)
        assert job is not None
        del job["metadata"]["managedFields"]
        return len(orjson.dumps(job))


def job_of(size: int, name: str = JOB) -> Object:
    resources = {"requests": {"memory": "16Gi"}, "limits": {"memory": "16Gi", "nvidia.com/gpu": "8"}}
    container = {
        "name": "main",
        "image": "registry.example/team/train:2026-01-01",
        "command": ["torchrun", "--nproc-per-node=8", "train.py", "--config", "/etc/train/config.yaml"],
        "env": [{"name": f"SETTING_{number}", "value": "some value"} for number in range(10)],
        "resources": resources,
    }
    worker = {
        "replicas": size,
        "restartCount": 1_000,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    policy = {"nodeUnit": max(size // STEPS_OF_A_ROLL, 1)}
    return {
        "metadata": {"name": name},
        "spec": {"replicaSpecs": {names.WORKER: worker}, "elasticPolicy": policy},
    }


def worker_of(job: Object, index: int) -> Object:
    """As the job's reconciler makes it."""
    name = job["metadata"]["name"]
    labels = {
        names.LABEL_JOB: name,
        names.LABEL_APP: names.APP,
        names.LABEL_MANAGED_BY: names.MANAGER,
        names.LABEL_TYPE: names.WORKER,
        names.LABEL_INDEX: str(index),
    }
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "name": name,
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {"name": f"{name}-worker-{index}", "labels": labels, "ownerReferences": [owner]}
    return {
        "metadata": metadata,
        "spec": {"jobName": name, "type": names.WORKER, "index": index, "incarnation": 1},
    }


# --- the cells ----------------------------------------------------------------------------------------------


async def steady(fleet: Fleet) -> None:
    """Looks at a job that trains, scrapes, and another controller that takes over."""
    await fleet.trains()
    manager, reconciler = fleet.controller, fleet.job_reconciler()
    for section in ("first look", "steady look"):
        with fleet.measured(section):
            await reconciler.reconcile(Request(NAMESPACE, JOB))
    for section in ("scrape, cold", "scrape, warm"):
        with fleet.measured(section):
            body = await scraped(manager)
    tell("sizes", job=fleet.job_bytes(), scrape=len(body))
    await manager.stop()
    gc.collect()
    before = resident_bytes()
    fleet.controller = VirtualController(fleet.server)
    with fleet.measured("take-over"):
        await fleet.controller.start_watching()
        fleet.controller.start()
        await fleet.is_quiet()
    await scraped(fleet.controller)
    tell("sizes", resident=resident_bytes() - before)


async def start(fleet: Fleet) -> None:
    """From `kubectl apply` until all train."""
    await fleet.controller.start_watching()
    fleet.controller.start()
    with fleet.measured("start"):
        with running_loop().outside():
            fleet.submit()
        await fleet.is_training()


async def roll(fleet: Fleet) -> None:
    """New resources for all workers, in ten node units, each of which is up before another goes."""
    await fleet.trains()
    with fleet.measured("roll"):
        await fleet.roll(1)
    tell("sizes", roll=fleet.server.largest_bytes[ELASTICJOBS.plural])


async def rolls(fleet: Fleet) -> None:
    """Twelve, one after the other."""
    await fleet.trains()
    for number in range(1, 13):
        with fleet.measured(f"roll {number} of 12"):
            await fleet.roll(number)
    tell("sizes", rolls=fleet.server.largest_bytes[ELASTICJOBS.plural])


async def oom(fleet: Fleet) -> None:
    """Some workers, then others, then all are killed for memory at once; each time until all train again."""
    await fleet.trains()
    victims = {
        "OOM of a rack": slice(RACK),
        "OOM of every hundredth": slice(0, None, 100),
        "OOM of all": slice(None),
    }
    for section, chosen in victims.items():
        worlds = fleet.nodes.worlds
        with fleet.measured(section):
            for worker in sorted(fleet.nodes.agents, key=index_of)[chosen]:
                fleet.nodes.end_pod(worker, "OOMKilled", 137)
            await fleet.until(lambda: fleet.nodes.worlds > worlds, "a new world")  # noqa: B023
            await fleet.is_training()
    tell("sizes", oom=fleet.server.largest_bytes[ELASTICJOBS.plural])


async def scraped(controller: VirtualController) -> bytes:
    """As `controller/servers.py` answers."""
    return await asyncio.to_thread(prometheus_client.generate_latest, controller.metrics_registry)


def index_of(worker: str) -> int:
    return int(worker.rpartition("-")[2])


async def heartbeats(fleet: Fleet) -> None:
    """A controller takes over with so many Leases, which are renewed; then one is not any more."""
    server, nodes, loop = fleet.server, fleet.nodes, running_loop()
    with loop.outside():
        for number in range(-(-fleet.size // LARGEST_JOB)):
            replicas = min(LARGEST_JOB, fleet.size - number * LARGEST_JOB)
            job = server.create(ELASTICJOBS, job_of(replicas, f"{JOB}-{number}"))
            parsed = ElasticJob.model_validate(job)
            for index in range(replicas):
                nodes.place(parsed, worker_of(job, index))
        for worker in nodes.agents:
            nodes.renew(worker)
    controller, silent = fleet.controller, next(iter(nodes.agents))
    leases = Cache(controller.client)
    leases.store(LEASES)
    with fleet.measured("an informer takes in the Leases"):
        listing = asyncio.create_task(leases.run())
        await leases.wait_synced()
    listing.cancel()
    beating = asyncio.create_task(fleet.beats_for(PATIENCE_SECONDS))
    with fleet.measured("worlds of agents that wait"):
        await controller.start_watching()
        controller.start()
        await fleet.is_training()
    with fleet.measured("a minute of heartbeats"):
        await asyncio.sleep(60.0)
    with fleet.measured("a scrape meanwhile"):
        await scraped(controller)
    beating.cancel()
    beating = asyncio.create_task(fleet.beats_for(PATIENCE_SECONDS, silent))
    last_beat = loop.time()

    def is_lost() -> bool:
        worker = server.get(ELASTICWORKERS, silent) or {}
        return bool(worker["status"].get("lastExit", {}).get("exitClass"))

    await fleet.until(is_lost, f"{silent} is found silent")
    beating.cancel()
    tell("sizes", silent=loop.time() - last_beat)


async def check(fleet: Fleet) -> None:
    """A NodeCheck of all nodes, in Pods of its own, from its creation to its verdicts."""
    await fleet.controller.start_watching()
    fleet.controller.start()
    spec = {"nodes": [f"node-{index}" for index in range(fleet.size)], "cordon": False, "timeoutSeconds": 600}
    with fleet.measured("a check of all nodes"):
        with running_loop().outside():
            fleet.server.create(NODECHECKS, {"metadata": {"name": "lab"}, "spec": spec})

        def status() -> Object:
            found = fleet.server.get(NODECHECKS, "lab")
            assert found is not None
            return found.get("status") or {}

        await fleet.until(lambda: status().get("phase") in ("Succeeded", "Failed"), "the check is over")
        await fleet.is_quiet()
    found, bad = status(), [f"node-{index}" for index in range(0, fleet.size, ONE_BAD_NODE_IN)]
    assert sorted(found.get("faultyNodes", ())) == sorted(bad), str(found)[:2_000]
    tell("sizes", check=fleet.server.largest_bytes[NODECHECKS.plural])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


CELLS: Mapping[str, Cell] = {"steady": steady, "start": start, "roll": roll, "oom": oom}
AT: Mapping[str, tuple[Cell, int]] = {
    "rolls": (rolls, 1_000),
    "heartbeats": (heartbeats, 21_000),
    "check": (check, 7_000),
}
"""Those that are measured at one size."""


def measure(cell: str, size: int, budget_seconds: float) -> None:
    """In a process of its own: tells its figures, and ends without tidying up, which would take as long."""
    budget = Budget(budget_seconds)
    budget.watch()
    keep_pauses_short()  # as `dlr controller` does

    async def measured() -> None:
        run = CELLS[cell] if cell in CELLS else AT[cell][0]
        await run(Fleet(size, budget))
        os._exit(0)

    virtual_time.run(measured())


def collect(cell: str, size: int, budget_seconds: float) -> dict[str, float | None]:
    """The figures of one cell, by a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.scale",
        "--cell",
        cell,
        str(size),
        "--budget",
        str(budget_seconds),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LONGEST_CELL_SECONDS)
    if done.returncode:
        raise ChildProcessError(f"{cell} at {size} workers ended with status {done.returncode}")
    figures: dict[str, float | None] = {}
    for line in done.stdout.splitlines():
        figures |= json.loads(line)
    return figures


def report(known: Mapping[str, Mapping[str, Figures]], budget_seconds: float) -> str:
    now, before = (
        {int(size): figures for size, figures in known.get(which, {}).items()} for which in ("now", "before")
    )
    return f"""# What the controller costs, by the number of workers

All controllers, with their informers and queues, over an API server in memory: what HTTP and TLS cost, and
what the machines of API server, kubelets and agents compute, is left out. Time is virtual: it passes by what
the controller computes, as if it had a processor for itself, and otherwise jumps to whatever comes next. A
request is answered after {LATENCY_SECONDS * 1000:g} ms, {PODS_A_SECOND:g} Pods are bound a second,
an agent is ready {AGENT_START_SECONDS:g} s after that, and all agents tell of a new world within
{RESTART_SECONDS:g} s. There is a node for each worker. The exponent is fitted by least squares from
{FIT_FROM:,} workers on (1: twice the workers, twice the cost). "> {budget_seconds:g}": more than that, and
not measured to its end.
{BRACKETS if now else ALONE}

{tables(now or before, before if now else {}, budget_seconds)}

* How long the event loop *was blocked* leaves out Python's garbage collector, which looks at what API server,
  kubelets and agents have made as well, since they are in the same process here. (The columns of other sizes
  than 7,000 and 10,000 were measured with it.)
* A *steady look* at a job of which all workers train: nothing has changed since the last one. The *first
  look* is that of a controller that has just started. A *take-over* is a controller that starts, lists
  everything and looks at all of it.
* A *start* lasts from `kubectl apply` until all train. A *roll* gives all workers new resources, in
  {STEPS_OF_A_ROLL} node units, never with fewer workers than before. *OOM*: the Pods of {RACK} workers (a
  rack), of every hundredth, or of all are killed for memory at once; until all train again with more.
* *Heartbeats* are those of {AT["heartbeats"][1]:,} workers, with a Lease each, from when a controller has
  formed the *worlds of agents that wait* for one; the *check* is a NodeCheck in
  Pods of its own, whose agents answer at once.

{conditions()}
To run it again, or a part of it:

    python -m benchmarks.scale [--sizes 100 1000] [--only steady roll]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="What the controller costs, by the number of workers.")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--only", nargs="+", choices=[*CELLS, *AT], default=[*CELLS, *AT])
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="CPU seconds for each figure")
    parser.add_argument("--before", action="store_true", help="keep the figures as those of before")
    parser.add_argument("--cell", nargs=2, metavar=("CELL", "SIZE"), help="measure this one, in this process")
    arguments = parser.parse_args()
    if arguments.cell:
        measure(arguments.cell[0], int(arguments.cell[1]), arguments.budget)
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    which = known.setdefault("before" if arguments.before else "now", {})
    too_long: dict[str, dict[str, float | None]] = {}
    """By cell, what a smaller size did not manage within the budget."""
    cells = [(size, cell) for size in sorted(arguments.sizes) for cell in arguments.only if cell in CELLS]
    cells += [(AT[cell][1], cell) for cell in arguments.only if cell in AT]
    for size, cell in cells:
        figures = too_long.get(cell) or collect(cell, size, arguments.budget)
        print(cell, size, figures, flush=True)
        if None in figures.values():
            too_long[cell] = {name: figure for name, figure in figures.items() if figure is None}
        which.setdefault(str(size), {}).update(figures)
        FIGURES.write_text(json.dumps(known, indent=1) + "\n")
    REPORT.write_text(report(known, arguments.budget))


if __name__ == "__main__":
    main()
