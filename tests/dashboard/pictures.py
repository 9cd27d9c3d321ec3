"""Makes the pictures of docs: a timeline, and the dashboard in Chromium, both of made-up objects.

python -m tests.dashboard.pictures docs/images
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import tempfile
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from dlr.dashboard import reading
from dlr.dashboard.server import Dashboard, serve
from dlr.job import case
from dlr.job.case import Case
from dlr.job.goodput import account_of
from dlr.job.timeline.drawing import svg_file
from dlr.job.timeline.life import life_of
from dlr.job.verdict import verdict
from dlr.kube.api import Api
from dlr.kube.connection import connect
from tests.cli import troubled
from tests.cli.scripted import GROUP_PATH, Request, ScriptedServer, job, kubeconfig_for, listing, worker
from tests.cli.test_job_groups import group, grouped
from tests.cli.troubled import at, episode, failed, life, troubled_events, troubled_job, troubled_workers
from tests.dashboard.browser import CHROMIUM, Page, browser

JSON = dict[str, Any]
WITHIN = f"{GROUP_PATH}/default"
DESKTOP, PHONE = (1280, 900), (390, 844)
SHOTS = (
    ("fleet", "", DESKTOP, False),
    ("fleet-phone-dark", "", PHONE, True),
    ("job", "#/job/default/digits", DESKTOP, False),
    ("job-dark", "#/job/default/digits", DESKTOP, True),
    ("job-phone", "#/job/default/digits", PHONE, False),
    ("ranks", "#/job/default/pretrain", DESKTOP, False),
    ("ranks-phone-dark", "#/job/default/pretrain", PHONE, True),
)
"""Name, address, size, and whether it is dark."""
RANKS = 1_000
GIB = 2**30
COLORS, PLAIN = 128, Image.Dither.NONE
SLOW = (
    "a step takes 0.62 s since step 330 ({since}), 1.5 times the 0.42 s of before; digits-worker-2 is on node-3 "
    "since then, before on node-2"
)
LOOP = "ValueError: a batch without labels, 3 times at step 118"
WAITS = "3 of 8 Pods have no node: 0/64 nodes are available: 64 Insufficient nvidia.com/gpu"


def usage(gpu: float) -> JSON:
    figures = {"cpuCores": 7.2, "memoryPeakBytes": 45 * GIB, "memoryBytes": 40 * GIB}
    return figures | {"gpuShare": gpu, "gpuMemoryBytes": 61.5 * GIB}


def series(points: int, begin: float, every: float, slow_from: int) -> JSON:
    chance = random.Random(7)
    told: list[JSON] = [
        {
            "step": 5 * n,
            "time": at(begin + every * n),
            "worldSize": 3,
            "secondsPerStep": round((0.62 if n >= slow_from else 0.42) * chance.uniform(0.97, 1.05), 3),
            "usage": {
                "cpuCores": round(7.2 + chance.uniform(-0.6, 0.6), 2),
                "memoryBytes": (30 + n / 9) * GIB,
                "gpuShare": (0.72 if n >= slow_from else 0.94) + chance.uniform(-0.03, 0.03),
                "gpuMemoryBytes": 61.5 * GIB,
            },
            "numbers": {"loss": round(2.4 * math.exp(-n / 40) + 0.3 + chance.uniform(-0.05, 0.05), 3)},
        }
        for n in range(1, points + 1)
    ]
    return {"every": 1, "points": told, "latest": told[-1]}


def digits() -> tuple[JSON, list[JSON]]:
    message = SLOW.format(since=f"{troubled.SUBMITTED + timedelta(seconds=210):%Y-%m-%dT%H:%M:%SZ}")
    slow = {"type": "Slow", "message": message, "since": at(240)}
    made, workers = troubled_job(), troubled_workers()
    running, _ = made["status"]["conditions"]
    made["status"] |= {"conditions": [running], "warnings": [slow]}
    for each in workers:
        each["status"]["agent"]["progress"] = {"step": 480, "time": at(299), "secondsPerStep": 0.62}
        each["status"]["agent"]["usage"] = usage(0.72)
        each["status"]["agent"]["rounds"][0] |= {"lastStep": 480, "steppingSeconds": 140.0}
    made["status"]["goodput"]["ratio"] = account_of(made, workers, troubled.NOW).ratio
    report = workers[0]["status"]["agent"]
    report["series"] = series(96, 10, 3, 66)
    report["slow"] = {"since": at(208), "step": 330, "secondsPerStep": 0.62, "usualSeconds": 0.42}
    return made, workers


def account(state: str, since: float, ratio: float, last: int, pace: float = 0.5) -> JSON:
    spent = {"Pending": 14.0, "Forming": 3.0} | ({"Training": since - 17} if state == "Recovering" else {})
    return {
        "state": state,
        "since": at(since),
        "seconds": spent,
        "firstStep": 1,
        "lastStep": last,
        "stepsTimed": last - 1,
        "steppingSeconds": pace * last,
        "round": 1,
        "ratio": ratio,
    }


BEHIND: JSON = {
    "type": "RanksBehind",
    "message": "8 of 1000 workers are far behind the others: pretrain-worker-40, pretrain-worker-41, "
    "pretrain-worker-42 and 5 more",
    "since": at(200),
    "data": {"worker": "pretrain-worker-40", "count": 8},
}


def pretrain() -> tuple[JSON, list[JSON]]:
    chance = random.Random(3)
    master = {"masterAddress": "10.0.0.12", "masterPort": 29500, "formedAt": at(14)}
    world = {"round": 1, "phase": "Formed", "members": f"0-{RANKS - 1}", "worldSize": RANKS} | master
    counts = {"worker": {"desired": RANKS, "active": RANKS}}
    lived = [episode("Pending", 0), episode("Forming", 14, 1, "0-999"), episode("Training", 17, 1, "0-999")]
    made = job(
        "pretrain",
        workers=RANKS,
        phase="Running",
        rendezvous=world,
        replicaStatuses=counts,
        history=lived,
        goodput=account("Training", 17, 0.911, 546),
        warnings=[BEHIND],
    )
    workers = []
    for index in range(RANKS):
        slow = 40 <= index < 48
        pace = (0.9 if slow else 0.5) * chance.uniform(0.97, 1.03)
        progress = {"step": 546 - 60 * slow, "time": at(299), "secondsPerStep": pace}
        agent = {"incarnation": 1, "state": "Running", "progress": progress, "observedRound": 1}
        agent["usage"] = usage((0.45 if slow else 0.9) * chance.uniform(0.97, 1.03))
        node = f"node-{index // 16}"
        workers.append(
            worker(index, job_name="pretrain", nodeName=node, agent=agent, history=[life(1, node, 2, 11)])
        )
    return made, workers


def others() -> tuple[list[JSON], list[JSON]]:
    """A job in each further state."""
    waits = job("finetune", workers=8, phase="Pending", reason="Unschedulable", message=WAITS)
    waits["status"]["history"] = [episode("Pending", 170)]
    waits["metadata"]["creationTimestamp"] = at(170)
    counts = {"worker": {"desired": 8, "active": 7}}
    lived = [episode("Pending", 40), episode("Training", 55, 1, "0-7"), episode("Recovering", 285, 1, "0-7")]
    recovers = job("llama-8b", workers=8, phase="Restarting", replicaStatuses=counts, history=lived)
    recovers["status"] |= {
        "goodput": account("Recovering", 245, 0.858, 1240, 0.18),
        "failures": {"NodeLost": 1},
        "rendezvous": {"round": 1, "phase": "Forming"},
    }
    recovers["metadata"]["creationTimestamp"] = at(40)
    why = {"type": "Failed", "status": "True", "lastTransitionTime": at(240), "reason": "SameErrorRepeated"}
    lost = troubled_workers()
    for each in lost:
        each["spec"]["jobName"] = "ablation-3"
        each["metadata"]["name"] = each["metadata"]["name"].replace("digits", "ablation-3")
    failed_job = troubled_job(phase="Failed", conditions=[why | {"message": LOOP}], completionTime=at(240))
    failed_job["status"] |= {"reason": "SameErrorRepeated", "message": LOOP}
    failed_job["metadata"] |= {"name": "ablation-3", "uid": "uid-ablation"}
    done = troubled_job(phase="Succeeded", completionTime=at(280), lastFailure=None, conditions=[])
    done["metadata"] |= {"name": "warm-up", "uid": "uid-warm-up"}
    lived = [episode("Pending", 0), episode("Training", 20, 1, "0-1")]
    broken = [*lived, episode("Recovering", 290, 2, "0-1")]
    parts = [
        group(each, "diloco", "uid-diloco", history=broken if each == 1 else lived, goodput=train)
        for each, train in enumerate(
            [
                account("Training", 20, 0.9, 560),
                account("Recovering", 290, 0.8, 540),
                account("Training", 20, 0.9, 561),
            ]
        )
    ]
    whole = grouped("diloco", history=lived, goodput=account("Training", 20, 0.9, 561))
    eight = [
        worker(
            index, job_name="llama-8b", nodeName=f"node-{index}", history=[life(1, f"node-{index}", 42, 50)]
        )
        for index in range(8)
    ]
    return [waits, recovers, whole, *parts, failed_job, done], [*eight, *lost]


def objects() -> JSON:
    (one, its), (large, many), (rest, theirs) = digits(), pretrain(), others()
    for each in [large, *rest]:
        worker_spec = each["spec"]["replicaSpecs"]["worker"]
        worker_spec.setdefault("template", {"spec": {"containers": [{"name": "main", "image": "train"}]}})
    jobs, workers = [one, large, *rest], its + many + theirs

    def of_job(request: Request) -> JSON:
        asked = request.query.get("labelSelector", "")
        named = [each for each in workers if f"={each['spec']['jobName']}" in asked]
        leads = [] if "job-name=" in asked else [each for each in workers if each["spec"]["index"] == 0]
        return listing(*(named or leads))

    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    named = {f"node-{each}": {"metadata": {"name": f"node-{each}"}, "status": ready} for each in range(64)}
    nodes = {f"GET /api/v1/nodes/{name}": node for name, node in named.items()}
    answers: JSON = nodes | {f"GET {WITHIN}/elasticjobs/{each['metadata']['name']}": each for each in jobs}
    return answers | {
        f"GET {WITHIN}/elasticjobs": listing(*jobs),
        f"GET {WITHIN}/elasticworkers": of_job,
        f"GET {WITHIN}/nodechecks": listing(),
        "GET /api/v1/namespaces/default/events": listing(*troubled_events()),
        "GET /api/v1/nodes": listing(*named.values()),
    }


def timeline() -> str:
    """A job of four workers: one raises, one hangs, one is lost with its node."""
    raised = failed(1, 48.5, "UserError", "ValueError: batch 1932 has no labels", 1)
    hung = failed(2, 94.8, "Hang", "no step for 10 s (the limit is 10 s): rank 2 is at loader.py:22", 2)
    history = [
        episode("Pending", 0),
        episode("Forming", 9.3, 1, "0-3", "all 4 workers are ready"),
        episode("Training", 27.6, 1, "0-3"),
        episode("Recovering", 48.5, 1, "0-3", "digits-worker-1 rank 1: ValueError", raised),
        episode("Recovering", 48.6, 2, "0-3"),
        episode("Training", 54.3, 2, "0-3"),
        episode("Recovering", 85.2, 3, "0-3", "digits-worker-2 rank 2: no step for 10 s", hung),
        episode("Training", 103, 3, "0-3"),
        episode("Recovering", 135.7, 4, "0-3", "worker 0 was lost: its node node-0 is gone"),
        episode("Recovering", 145.2, 5, "0-3"),
        episode("Training", 159, 5, "0-3"),
    ]
    spent = {"state": "Training", "since": at(159), "seconds": {"Recovering": 46}, "stepsRedone": 27}
    failures = {"UserError": 1, "Hang": 1, "NodeLost": 1}
    ended = {"phase": "Succeeded", "completionTime": at(186), "lastFailure": None}
    made = job(workers=4, **ended, history=history, failures=failures, goodput=spent)
    peer = "[gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.7]:51633."
    followed = {
        "sequence": 1,
        "round": 3,
        "exitCode": 1,
        "message": f"RuntimeError: {peer}",
        "time": at(135.7),
    }
    lost = [life(1, "node-0", 2, 2.5, endedAt=at(140.5), exitClass="NodeLost", reason="the node is gone")]
    workers = [
        worker(0, nodeName="node-4", history=[*lost, life(2, "node-4", 140.6, 141)]),
        *(
            worker(each, nodeName=f"node-{each}", history=[life(1, f"node-{each}", 2, 2.7)])
            for each in (1, 2, 3)
        ),
    ]
    for index in (1, 3):
        workers[index]["status"]["agent"] = {"incarnation": 1, "failure": followed | {"rank": index}}
    case = Case(made, workers, (), troubled.NOW)
    return svg_file(life_of(made, workers, 0.55, troubled.NOW), verdict(case).text)


async def shoot(folder: Path, url: str, page: Page) -> None:
    for name, address, size, dark in SHOTS:
        await page.size(*size, dark=dark)
        await page.open("about:blank")
        await page.open(f"{url}{address}")
        await page.wait_for("document.querySelector('#top h1, [data-row]')")
        if name.startswith("ranks"):
            await page.evaluate("document.querySelector('[data-mode=slowness]').click()")
            rule = "section:not(#top, #ranks) { display: none }"
            await page.evaluate(f"document.styleSheets[2].insertRule('{rule}')")
        await asyncio.sleep(1.5)  # for the drawing
        picture = (
            Image.open(BytesIO(await page.screenshot()))
            .convert("RGB")
            .quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=PLAIN)
        )
        picture.save(folder / f"dashboard-{name}.png", optimize=True)
    assert page.errors == []


async def main(folder: Path) -> None:
    server = ScriptedServer()
    server.answers |= objects()
    with tempfile.TemporaryDirectory() as made:
        config = Path(made) / "kubeconfig"
        config.write_text(yaml.safe_dump(kubeconfig_for(server.url)))
        os.environ["KUBECONFIG"] = str(config)
        cluster = Api(connect(None, None, None))
        async with serve(Dashboard(cluster), 0) as url, browser() as page:
            await shoot(folder, url, page)
    server.close()


if __name__ == "__main__":
    into = Path(sys.argv[1])
    (into / "timeline.svg").write_text(timeline())
    for module in (reading, case):
        module.utc_now = lambda: troubled.NOW  # type: ignore[attr-defined]
    if CHROMIUM is not None:
        asyncio.run(main(into))
