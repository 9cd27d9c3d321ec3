"""Fleet for the cells of the scale benchmark: one job with everything around it, and its measurements."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson

from benchmarks.scale_report import STEPS_OF_A_ROLL
from benchmarks.virtual_cluster import NAMESPACE, ApiServer, VirtualController
from benchmarks.virtual_nodes import RESTART_SECONDS, VirtualNodes, add_nodes
from benchmarks.virtual_time import running_loop
from controller.reconciler import Request
from controller.resources import Object
from crds import names
from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from reconcilers.job.reconciler import ElasticJobReconciler
from reconcilers.observed.builder import heartbeat_seconds
from reconcilers.runtime.kinds import ELASTICJOBS, SCALEPLANS
from reconcilers.runtime.tools import Tools

JOB = "big"
BEATS = 100
"""Number of portions in which the heartbeats of one period arrive."""
HEARTBEAT_TIMEOUT_SECONDS = 30.0
LOOKS_TO_FORM = 3
QUIET_SECONDS = 3.0
PATIENCE_SECONDS = 3_600.0


def computed_seconds() -> float:
    """Return the CPU seconds of the controller so far, including its threads."""
    return time.process_time() - running_loop().outside_seconds


def tell(section: str, **figures: float) -> None:
    """Print one line for the collecting process."""
    print(json.dumps({f"{section}/{name}": figure for name, figure in figures.items()}), flush=True)


class Fleet:
    """Job with everything around it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.server = ApiServer()
        with running_loop().outside():
            add_nodes(self.server, size)
        self.nodes = VirtualNodes(self.server, size)
        self.controller = VirtualController(self.server)

    @contextmanager
    def measured(self, section: str, times: int = 1) -> Iterator[None]:
        """Measure the controller in this block; divide the figures by `times`."""
        gc.collect()
        loop, server = running_loop(), self.server
        looks, writes = self.controller.looks("elasticjob"), server.controller_writes
        began = loop.time()
        loop.longest_stretch_seconds()
        computed = computed_seconds()
        yield
        computed = computed_seconds() - computed
        tell(
            section,
            cpu=computed / times,
            stretch=loop.longest_stretch_seconds(),
            looks=(self.controller.looks("elasticjob") - looks) / times,
            writes=(server.controller_writes - writes) / self.size / times,
            refused=server.refused,
            virtual=(loop.time() - began) / times,
        )

    async def trains(self) -> None:
        """Set up a job whose workers all train. They are created directly: another cell measures that."""
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
        """Return another reconciler, which no event wakes."""
        made = self.controller
        return ElasticJobReconciler(
            Tools(made.client, made.cache, made.recorder, made.client.contact, made.clock)
        )

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
        """Wait until the controller has written nothing for a while."""
        before = -1
        while (writes := self.server.controller_writes) != before:
            before = writes
            await asyncio.sleep(QUIET_SECONDS)

    async def is_training(self) -> None:
        await self.until(lambda: self.nodes.all_in(AgentState.RUNNING, self.size), "all train")
        await self.is_quiet()
        await self.until(lambda: self.nodes.all_in(AgentState.RUNNING, self.size), "all train")

    async def beats_for(self, seconds: float, silent: str = "") -> None:
        """Renew all Leases for a while, evenly spread, except that of one worker."""
        period, loop = heartbeat_seconds(self.size, HEARTBEAT_TIMEOUT_SECONDS), running_loop()
        end, workers = loop.time() + seconds, [worker for worker in self.nodes.agents if worker != silent]
        for number in itertools.cycle(range(BEATS)):
            if loop.time() > end:
                return
            await asyncio.sleep(period / BEATS)
            with loop.outside():
                for worker in workers[number::BEATS]:
                    self.nodes.renew(worker)

    async def roll(self) -> None:
        """Give all workers new resources, from the ScalePlan to its end."""
        resources = {"worker": {"resource": {"memory": "17Gi"}}}
        plan = {
            "metadata": {"name": "roll", "labels": {"scale-type": "manual"}},
            "spec": {"ownerJob": JOB, "replicaResourceSpecs": resources},
        }
        with running_loop().outside():
            self.server.create(SCALEPLANS, plan)

        def succeeded() -> bool:
            raw = self.server.get(SCALEPLANS, "roll") or {}
            phase = raw.get("status", {}).get("phase")
            assert phase not in ("Refused", "Superseded"), raw["status"]
            conditions = (self.server.get(ELASTICJOBS, JOB) or {}).get("status", {}).get("conditions", ())
            scaled = any((c["type"], c["status"]) == ("Scaled", "True") for c in conditions)
            return phase == "Applied" and scaled

        await self.until(succeeded, "the roll is done")
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
    """Return a worker as the job's reconciler creates it."""
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
