"""Duration of a recovery: dlr compared with stock torchrun and DLRover.

Two agents with one process each train a tiny DDP model over gloo (benchmarks/tiny_ddp.py). Rank 1 fails:
its process is killed, its Pod, or its node; the clock stops when every rank has ended a step in the next
world. A turn strikes one job several times; turns alternate, so that other load on the machine affects all
contenders. A trial that passes its deadline counts as hung, and the turn continues with a new job. dlr
runs in Pods of the embedded cluster, so its figures include the API server, the controller and the
watches.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.recovery_contender import Contender, Failure, Recovery, Trial
from benchmarks.recovery_dlr import NODES, Dlr
from benchmarks.recovery_events import Timeline, wait_for
from benchmarks.recovery_peers import Dlrover, Torchrun, dlrover_venv
from benchmarks.recovery_report import PEERS, Circumstances, Results, Yardsticks, report, table
from benchmarks.recovery_yardsticks import SlowKubelets, bare_pod_seconds, import_torch_seconds
from e2e.embedded import EmbeddedCluster

RESULTS = Path(__file__).parent / "results"
YARDSTICKS = 3
"""Measurements of each yardstick before the first trial, and after the last."""


def turn(
    contender: Contender, failure: Failure, strikes: int, deadline_seconds: float, *, observed: bool = False
) -> list[Trial]:
    """Run trials in one job, or in several if it hangs."""
    trials: list[Trial] = []
    while len(trials) < strikes:
        trials += life(contender, failure, strikes - len(trials), deadline_seconds, observed=observed)
    return trials


def life(
    contender: Contender, failure: Failure, strikes: int, deadline_seconds: float, *, observed: bool
) -> list[Trial]:
    """Run trials in one job; return all, or fewer if the last one hung."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as directory:
        contender.start(Path(directory), observed=observed)
        try:
            recoveries = list(recover(contender, failure, Path(directory), strikes, deadline_seconds))
            stages = contender.stages(recoveries) if observed else [{} for _ in recoveries]
        finally:
            contender.stop()
    trials = [Trial(recovery.seconds, parts) for recovery, parts in zip(recoveries, stages, strict=True)]
    return trials if len(trials) == strikes else [*trials, Trial(None)]


def recover(
    contender: Contender, failure: Failure, events: Path, strikes: int, deadline_seconds: float
) -> Iterator[Recovery]:
    """Yield recoveries until one fails."""
    timeline, world = Timeline(events), 0
    for _ in range(strikes):
        victim = wait_for(lambda: timeline.victim(world), deadline_seconds)  # noqa: B023 (called at once)
        if victim is None:
            return
        struck_at = contender.strike(failure, victim)
        world = victim.world
        found = wait_for(lambda: timeline.recovered_after(world), deadline_seconds)  # noqa: B023
        if found is None:
            return
        next_world, stepped_at = found
        yield Recovery(struck_at, stepped_at, timeline.starts(next_world))
        contender.mend()


Strikes = Mapping[tuple[Failure, bool], int]
"""Number of trials of a contender, by failure and whether it is a peer."""


def measure(
    contenders: Sequence[Contender], strikes: Strikes, turns: int, deadline_seconds: float
) -> Results:
    results: Results = {failure: {} for failure in Failure if strikes[failure, False]}
    for number in range(turns):
        for failure in results:
            for contender in contenders:
                total = strikes[failure, contender.name in PEERS]
                share = total // turns + (number < total % turns)
                if failure not in contender.failures or not share:
                    continue
                patience_seconds = deadline_seconds * (2 if failure is Failure.NODE else 1)
                trials = turn(contender, failure, share, patience_seconds)
                if failure is Failure.PROCESS and contender.has_stages:
                    seen = turn(contender, failure, share, patience_seconds, observed=True)
                    pairs = zip(trials, seen, strict=True)
                    trials = [replace(each, stages=its.stages) for each, its in pairs]
                results[failure].setdefault(contender.name, []).extend(trials)
                shown = ", ".join("hung" if t.seconds is None else f"{t.seconds:.2f}" for t in trials)
                print(f"turn {number + 1}: {failure.value}: {contender.name}: {shown}", flush=True)
    return results


def contenders(cluster: EmbeddedCluster, slow: SlowKubelets, *, peers: bool) -> list[Contender]:
    ours: list[Contender] = [Dlr(cluster), Dlr(cluster, warm_start=False), Dlr(cluster, standby=1), Dlr(slow)]
    return [*ours, Torchrun(), Dlrover(dlrover_venv())] if peers else ours


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Seconds to recover from a failure.")
    parser.add_argument("--kills", type=int, default=20, help="process kills for each contender")
    parser.add_argument("--pod-kills", type=int, default=20)
    parser.add_argument("--peer-pod-kills", type=int, default=2, help="of peers, which hang for minutes")
    parser.add_argument("--node-losses", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--deadline-seconds", type=float, default=60)
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="measure only dlr")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of recovery.md")
    return parser.parse_args()


def strikes(args: argparse.Namespace) -> Strikes:
    return {
        (Failure.PROCESS, False): args.kills,
        (Failure.PROCESS, True): args.kills,
        (Failure.POD, False): args.pod_kills,
        (Failure.POD, True): args.peer_pod_kills,
        (Failure.NODE, False): args.node_losses,
        (Failure.NODE, True): 0,
    }


def main() -> None:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that everything is cleaned up
    begun_at = time.monotonic()
    with ExitStack() as scope:
        cluster, slow = EmbeddedCluster(nodes=NODES), SlowKubelets(nodes=NODES)
        for each in (cluster, slow):
            scope.callback(each.stop)
            each.start()
        load = os.getloadavg()[0]
        imports = [import_torch_seconds() for _ in range(YARDSTICKS)]
        those = contenders(cluster, slow, peers=args.peers)
        results = measure(those, strikes(args), args.turns, args.deadline_seconds)
        imports += [import_torch_seconds() for _ in range(YARDSTICKS)]
        bare = [bare_pod_seconds(slow) for _ in range(2 * YARDSTICKS)]
    yardsticks = Yardsticks(statistics.median(imports), statistics.median(bare))
    minutes = (time.monotonic() - begun_at) / 60
    circumstances = Circumstances(
        load, minutes, args.deadline_seconds, " ".join(["python -m benchmarks.recovery", *sys.argv[1:]])
    )
    (args.out / "recovery.md").write_text(report(results, yardsticks, circumstances))
    print("\n\n".join(table(by_name, yardsticks) for by_name in results.values()))
    print(yardsticks)


if __name__ == "__main__":
    main()
