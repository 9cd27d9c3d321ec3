"""CPU seconds of the controller at 100 to 10,000 workers, and their growth: benchmarks/results/scale.md.

    python -m benchmarks.scale                     all of it, into benchmarks/results/
    python -m benchmarks.scale --cell roll 1000    one cell, in this process

All controllers run on a cluster in memory (virtual_cluster.py) in virtual time, in which they have a
processor for themselves. Each cell of the table is measured by its own process, which is ended if it takes
too long. Several run concurrently: each measures only its own CPU seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import prometheus_client

from benchmarks import virtual_time
from benchmarks.scale_fleet import JOB, PATIENCE_SECONDS, Fleet, job_of, tell, worker_of
from benchmarks.scale_report import RACK, Figures, conditions, report
from benchmarks.virtual_cluster import NAMESPACE, VirtualController
from benchmarks.virtual_nodes import ONE_BAD_NODE_IN
from benchmarks.virtual_time import running_loop
from controller.cache import Cache
from controller.garbage import keep_pauses_short
from controller.reconciler import Request
from controller.resources import LEASES, Object
from crds.elasticjob import ElasticJob
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.shapes import SHAPES

RESULTS = Path(__file__).parent / "results"
REPORT, FIGURES = "scale.md", "scale.json"
SIZES = (100, 1_000, 3_000, 10_000)
WITHIN_SECONDS = 1_800.0
"""Real time limit of each cell: the longest takes about 400 s on its own processor."""
STEADY_LOOKS = 20
OTHERS_BYTES = 128 << 20
"""Memory that others use between two steady looks: more than a processor's cache."""
LARGEST_JOB = 7_000

Cell = Callable[["Fleet"], Awaitable[None]]


# --- the cells ----------------------------------------------------------------------------------------------


async def steady(fleet: Fleet) -> None:
    """Measure reconciles of a job that trains, scrapes, and the take-over by another controller."""
    await fleet.trains()
    manager, reconciler = fleet.controller, fleet.job_reconciler()
    others = bytearray(OTHERS_BYTES)
    with fleet.measured("first look"):
        await reconciler.reconcile(Request(NAMESPACE, JOB))
    with fleet.measured("steady look", STEADY_LOOKS):  # a single one of 20 ms would depend on other load
        for _ in range(STEADY_LOOKS):
            with running_loop().outside():
                fill_caches(others)
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


def fill_caches(others: bytearray) -> None:
    """Fill the processor's caches, as before the occasional reconciles of a steady job."""
    half = len(others) // 2
    others[:half] = others[half:]


async def start(fleet: Fleet) -> None:
    """Measure from `kubectl apply` until all train."""
    await fleet.controller.start_watching()
    fleet.controller.start()
    with fleet.measured("start"):
        with running_loop().outside():
            fleet.submit()
        await fleet.is_training()


async def roll(fleet: Fleet) -> None:
    """Give all workers new resources, in ten node units, each of which is up before the next goes."""
    await fleet.trains()
    with fleet.measured("roll"):
        await fleet.roll()
    tell("sizes", roll=fleet.server.largest_bytes[ELASTICJOBS.plural])


async def oom(fleet: Fleet) -> None:
    """Kill some workers for memory, then others, then all at once; each time until all train again."""
    await fleet.trains()
    victims = {
        "OOM of a rack": slice(RACK),
        "OOM of every hundredth": slice(0, None, 100),
        "OOM of all": slice(None),
    }
    for section, chosen in victims.items():
        worlds = fleet.nodes.worlds
        with fleet.measured(section):
            with running_loop().outside():
                for worker in sorted(fleet.nodes.agents, key=lambda name: int(name.rpartition("-")[2]))[
                    chosen
                ]:
                    fleet.nodes.end_pod(worker, "OOMKilled", 137)
            await fleet.until(lambda: fleet.nodes.worlds > worlds, "a new world")  # noqa: B023
            await fleet.is_training()
    tell("sizes", oom=fleet.server.largest_bytes[ELASTICJOBS.plural])


async def scraped(controller: VirtualController) -> bytes:
    """Return the metrics as `controller/serving/servers.py` renders them."""
    return await asyncio.to_thread(prometheus_client.generate_latest, controller.metrics_registry)


async def heartbeats(fleet: Fleet) -> None:
    """Let a controller take over with many renewed Leases; then stop the renewals of one worker and its
    node."""
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
    leases.keep_only(SHAPES)
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
    at_its_node = server.get(ELASTICWORKERS, silent) or {}
    with loop.outside():
        node_lease = {"metadata": {"name": at_its_node["status"]["nodeName"]}, "spec": {"renewTime": "once"}}
        server.create(LEASES, node_lease, "kubelet")
    beating = asyncio.create_task(fleet.beats_for(PATIENCE_SECONDS, silent))
    last_beat = loop.time()

    def is_lost() -> bool:
        worker = server.get(ELASTICWORKERS, silent) or {}
        return bool(worker["status"].get("lastExit", {}).get("exitClass"))

    await fleet.until(is_lost, f"{silent} is found silent")
    beating.cancel()
    tell("sizes", silent=loop.time() - last_beat)


async def check(fleet: Fleet) -> None:
    """Run a NodeCheck of all nodes, in its own Pods, from its creation to its verdicts."""
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
AT: Mapping[str, tuple[Cell, int]] = {"heartbeats": (heartbeats, 21_000), "check": (check, 7_000)}
"""Cells that are measured at one size."""
WEIGHTS: Mapping[str, float] = {"roll": 2.0, "heartbeats": 0.8, "start": 0.7, "steady": 0.5}
"""Relative time of a cell per worker."""


def measure(cell: str, size: int) -> None:
    """Measure in this process; print the figures, and exit without clean-up, which takes as long."""
    keep_pauses_short()  # as `dlr controller` does

    async def measured() -> None:
        run = CELLS[cell] if cell in CELLS else AT[cell][0]
        await run(Fleet(size))
        os._exit(0)

    virtual_time.run(measured())


@dataclass(frozen=True)
class Outcome:
    """Result of one cell's process."""

    size: int
    cell: str
    figures: Figures
    trouble: str | None = None
    """Why figures are missing; None if all are there."""


def collect(cell: str, size: int, within_seconds: float) -> Outcome:
    """Return the figures of one cell, measured by its own process within a time limit."""
    command = [sys.executable, "-m", "benchmarks.scale", "--cell", cell, str(size)]
    trouble, printed = None, b""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=within_seconds)
        printed = done.stdout
        if done.returncode:
            trouble = f"ended with status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        printed, trouble = error.stdout or b"", "was not done in time"
    figures: dict[str, float] = {}
    for line in printed.rpartition(b"\n")[0].splitlines():
        figures |= json.loads(line)
    return Outcome(size, cell, figures, trouble)


def collected(cells: Iterable[tuple[int, str]], arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Run all cells, `jobs` at a time, longest first; yield results as they arrive."""
    first = sorted(cells, key=lambda each: -each[0] * WEIGHTS.get(each[1], 1.0))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(collect, cell, size, arguments.within) for size, cell in first]
        for done in as_completed(running):
            yield done.result()


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds of the controller by the number of workers.")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--only", nargs="+", choices=[*CELLS, *AT], default=[*CELLS, *AT])
    parser.add_argument("--within", type=float, default=WITHIN_SECONDS, help="seconds for each cell")
    half = max((os.cpu_count() or 1) // 2, 1)
    parser.add_argument("--jobs", type=int, default=half, help="cells at a time; default: half of the CPUs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of scale.json and scale.md")
    parser.add_argument(
        "--cell", nargs=2, metavar=("CELL", "SIZE"), help="measure this cell, in this process"
    )
    arguments = parser.parse_args()
    if arguments.cell:
        measure(arguments.cell[0], int(arguments.cell[1]))
    sys.exit(measure_all(arguments))


def measure_all(arguments: argparse.Namespace) -> int:
    """Measure all cells, each replacing its earlier figures; return the exit code."""
    cells = [(size, cell) for size in arguments.sizes for cell in arguments.only if cell in CELLS]
    cells += [(AT[cell][1], cell) for cell in arguments.only if cell in AT]
    arguments.out.mkdir(parents=True, exist_ok=True)
    figures_file = next(f for f in (arguments.out / FIGURES, RESULTS / FIGURES) if f.exists())
    by_size: dict[str, dict[str, float]] = json.loads(figures_file.read_text())["figures"]
    has_trouble = False
    for outcome in collected(cells, arguments):
        print(outcome.cell, outcome.size, json.dumps(outcome.figures), flush=True)
        if outcome.trouble:
            has_trouble = True
            print(f"{outcome.cell} at {outcome.size} workers {outcome.trouble}", file=sys.stderr, flush=True)
        by_size.setdefault(str(outcome.size), {}).update(outcome.figures)
        known = {"measured": conditions(arguments.jobs), "figures": by_size}
        (arguments.out / FIGURES).write_text(json.dumps(known, indent=1) + "\n")
        (arguments.out / REPORT).write_text(report(known))
    return int(has_trouble)


if __name__ == "__main__":
    main()
