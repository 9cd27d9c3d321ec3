"""Report benchmarks/results/recovery.md, from the trials of benchmarks/recovery.py."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import torch

from benchmarks.recovery_contender import Failure, Stage, Trial
from benchmarks.recovery_dlr import SLOW_KUBELETS
from benchmarks.recovery_peers import DLROVER_VERSION, Dlrover, Torchrun

Results = dict[Failure, dict[str, list[Trial]]]
"""Trials by failure and contender."""

PEERS = (Torchrun.name, Dlrover.name)
ABOUT = {
    Failure.PROCESS: "SIGKILL of the training process; its agent and its Pod live on.",
    Failure.POD: """\
The Pod is deleted with no grace. With torchrun and DLRover agent and process are killed, and another agent is
started at once: what an ideal cluster would do, that takes no time to notice, to schedule and to start a
container.""",
    Failure.NODE: """\
The node is switched off, and nobody says so: of the time, the other agents give its kubelet 5 s to say how
the agent ended, since the machine that plays it still refuses connections. The peers have none on one
machine.""",
}


@dataclass(frozen=True)
class Circumstances:
    load: float
    """Load average of the last minute before the first trial."""
    minutes: float
    """Duration of the whole run."""
    deadline_seconds: float
    command: str
    """Command of the run."""


@dataclass(frozen=True)
class Yardsticks:
    """Reference values of the same run."""

    import_torch_seconds: float
    bare_pod_seconds: float
    """Seconds to start a Pod that does nothing, with a real kubelet's latencies."""


def seconds(trials: Sequence[Trial]) -> list[float]:
    """Return the seconds of the trials that recovered."""
    return [trial.seconds for trial in trials if trial.seconds is not None]


def table(by_name: Mapping[str, Sequence[Trial]], yardsticks: Yardsticks) -> str:
    lines = [
        "| | trials | median | 90 % | worst | median / `import torch` | hung |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, trials in by_name.items():
        recovered = sorted(seconds(trials))
        figures = ["–"] * 4
        if recovered:
            most = recovered[-(-9 * len(recovered) // 10) - 1]
            median = statistics.median(recovered)
            figures = [f"{value:.2f} s" for value in (median, most, recovered[-1])]
            figures.append(f"{median / yardsticks.import_torch_seconds:.2f}")
        lines.append(f"| {name} | {len(trials)} | {' | '.join(figures)} | {len(trials) - len(recovered)} |")
    return "\n".join(lines)


def ratios(by_name: Mapping[str, Sequence[Trial]]) -> str:
    """Return the ratios of the medians of recovered trials to the better peer's."""
    medians = {
        name: statistics.median(found) for name, trials in by_name.items() if (found := seconds(trials))
    }
    peers = {name: median for name, median in medians.items() if name in PEERS}
    if not peers:
        return ""
    best = min(peers, key=lambda name: peers[name])
    shown = [
        f"{name} {peers[best] / median:.1f}"
        for name, median in medians.items()
        if name not in (*PEERS, SLOW_KUBELETS)
    ]
    return f"Times faster than the better peer, {best}, by the median: {', '.join(shown)}."


def kubelets_share(by_name: Mapping[str, Sequence[Trial]], yardsticks: Yardsticks) -> str:
    """Return the kubelet's share and dlr's share of a lost Pod's recovery."""
    found = seconds(by_name.get(SLOW_KUBELETS, ()))
    if not found:
        return ""
    bare = yardsticks.bare_pod_seconds
    ours = statistics.median(found) - bare
    multiple = ours / yardsticks.import_torch_seconds
    return f"""\
With a real kubelet's latencies (0.5 s for the sandbox, 0.25 s for a container, and a second between two looks
at what has ended; localcluster/kubelet/latencies.py), a Pod of an init container and a container that do
nothing takes {bare:.2f} s until it runs. The rest, {ours:.2f} s, is dlr's: {multiple:.2f} times
`import torch`. What such a node takes to pull an image, and to read torch from a disk for the first time,
comes on top."""


def breakdown(by_name: Mapping[str, Sequence[Trial]]) -> str:
    """Return the median of each part, in ms; empty if no contender has parts."""
    parts_of = {
        name: parts for name, trials in by_name.items() if (parts := [t.stages for t in trials if t.stages])
    }
    if not parts_of:
        return ""
    lines = [
        f"| | trials | {' | '.join(stage.value for stage in Stage)} |",
        "|---|--:" + "|--:" * len(Stage) + "|",
    ]
    for name, parts in parts_of.items():
        medians = [f"{1000 * statistics.median(part[stage] for part in parts):.0f}" for stage in Stage]
        lines.append(f"| {name} | {len(parts)} | {' | '.join(medians)} |")
    return "\n".join(lines)


def sections(results: Results, yardsticks: Yardsticks) -> str:
    parts = []
    for failure, by_name in results.items():
        title = failure.value[0].upper() + failure.value[1:]
        parts.append(f"## {title}\n\n{ABOUT[failure]}\n\n{table(by_name, yardsticks)}")
        if text := ratios(by_name):
            parts.append(text)
        if failure is Failure.POD and (share := kubelets_share(by_name, yardsticks)):
            parts.append(share)
    return "\n\n".join(parts)


def report(results: Results, yardsticks: Yardsticks, now: Circumstances) -> str:
    return f"""# Recovery

Seconds from a failure of rank 1 until both ranks have ended a step in the next world: two agents with one
process each, gloo, a tiny DDP model, so that what is measured is detection, rendezvous and the start of
processes. A trial that took longer than {now.deadline_seconds:.0f} s (of a lost node, twice that) counts as
hung; medians and worst are of those that recovered. dlr's Pods are on the embedded cluster, so its figures
include the API server, the controller and the watches. Machines differ by two, so each median is also
given as a multiple of what a process takes for `import torch`: here {yardsticks.import_torch_seconds:.2f} s.

{sections(results, yardsticks)}

## Where dlr's time goes

Of a killed process, the median of each part in ms. A part ends when the last of those that have a share in
it is through.

{breakdown(results.get(Failure.PROCESS, {}))}

* **detect**: until the first agent's report of the failure is in the API server
* **publish**: until the next world is
* **observe**: until the last agent has seen it
* **stop**: until that agent has ended what it ran, and joins
* **start**: the agents meet; the process is forked, or spawned, up to the script's first line
* **import**: torch, in the script
* **init**: `init_process_group`
* **first step**: DistributedDataParallel, and a step of all

They are seen from outside of the product, in kills of their own: by two watches, which cost the job
processor time, in the agents' logs, and in what the training script notes.

## How it was measured

On {date.today()}, with {os.cpu_count()} CPU cores, {platform.system()}, Python {platform.python_version()},
torch {torch.__version__} and DLRover {DLROVER_VERSION} with its local master; load {now.load:.1f} before
the first trial. All ran on the same machine in one run of {now.minutes:.0f} minutes, turn by turn; a turn
strikes one job several times, and goes on with a fresh job where one hung. To run it again:

    {now.command}
"""
