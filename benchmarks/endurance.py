"""Hundreds of kills in one job's life: a random rank at a random moment, also while a world forms.

Asked afterwards: did training always come back; was there ever more than one world for a round, or a rank
that went back to an earlier one; was a checkpoint ever lost; and what did agents and controller take of
memory, processes, threads and open files, before and after. One job on the embedded cluster, two agents with
two processes each (benchmarks/endurance_ddp.py).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from benchmarks.endurance_footprint import Footprint, footprint, growth
from benchmarks.recovery_contender import MOST_RESTARTS
from benchmarks.recovery_events import Lines, wait_for
from benchmarks.recovery_peers import descendants
from benchmarks.recovery_report import Circumstances
from e2e import jobs, processes
from e2e.api import Object
from e2e.embedded import CONTROLLER, EmbeddedCluster
from e2e.observation import Observation
from e2e.processes import TrainingProcess

SCRIPT = Path(__file__).with_name("endurance_ddp.py")
REPORT = Path(__file__).parent.parent / "docs" / "endurance.md"
JOB = "endurance"
WORKERS = 2
PROCESSES_PER_WORKER = 2
WORLD_SIZE = WORKERS * PROCESSES_PER_WORKER
WARM_UP_KILLS = 10
"""Before the first look at what is taken: caches fill, and history has a limit."""
LONGEST_WAIT_SECONDS = {"patient": 1.5, "hasty": 0.5}
QUIET_SECONDS = 3.0


class Witness:
    """What the ranks wrote, and what must never be in it."""

    def __init__(self, directory: Path) -> None:
        self._steps = [Lines(directory / f"steps-{rank}") for rank in range(WORLD_SIZE)]
        self._resumed, self._saved = Lines(directory / "resumed"), Lines(directory / "saved")
        self._firsts: list[dict[int, float]] = [{} for _ in range(WORLD_SIZE)]
        self._resumes: dict[int, int] = {}
        self._last_saves: dict[int, int] = {}
        self.wrong: list[str] = []
        self.steps = 0
        self.highest = 0
        """Step that any rank has ended."""

    def trained_since(self, moment: float) -> float | None:
        """When all ranks had ended a first step in a world, in the first where that was after `moment`."""
        self._read()
        worlds = set.intersection(*(set(firsts) for firsts in self._firsts))
        whole = [max(firsts[world] for firsts in self._firsts) for world in worlds]
        return min((at for at in whole if at > moment), default=None)

    @property
    def worlds(self) -> int:
        """Return how many worlds there were in which all ranks trained."""
        return len(set.intersection(*(set(firsts) for firsts in self._firsts)))

    def lost_checkpoints(self) -> list[str]:
        """Worlds that began before the last checkpoint that an earlier one had saved."""
        self._read()
        lost, highest = [], 0
        for world in sorted({*self._resumes, *self._last_saves}):
            resumed = self._resumes.get(world)
            if resumed is not None and resumed < highest:
                lost.append(f"a world resumed at step {resumed}, when {highest} was saved")
            highest = max(highest, self._last_saves.get(world, 0))
        return lost

    def _read(self) -> None:
        for rank, lines in enumerate(self._steps):
            for world, step, at in lines.new():
                firsts = self._firsts[rank]
                if firsts and int(world) < max(firsts):
                    self.wrong.append(f"rank {rank} stepped in a world after it had begun a newer one")
                firsts.setdefault(int(world), float(at))
                self.steps += 1
                self.highest = max(self.highest, int(step))
        for world, step in self._resumed.new():
            self._resumes[int(world)] = int(step)
        for world, step in self._saved.new():
            self._last_saves[int(world)] = int(step)


@dataclass
class Course:
    """What happened."""

    kills: int = 0
    while_forming: int = 0
    recoveries: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    """Seconds, where nobody struck again before all stepped; by whether training had got further before."""
    hung: str = ""


class Killer:
    """Kills training processes of the job."""

    def __init__(
        self, cluster: EmbeddedCluster, observation: Observation, witness: Witness, deadline_seconds: float
    ) -> None:
        self._cluster, self._observation, self._witness = cluster, observation, witness
        self._deadline_seconds = deadline_seconds
        self._struck_at = 0.0
        self._highest = 0
        self._got_further = False
        self.course = Course()

    def strike(self, times: int, chance: random.Random) -> None:
        """So often, unless it hangs. Patience waits until all train again, haste does not."""
        for _ in range(times):
            manner = chance.choice(list(LONGEST_WAIT_SECONDS))
            if manner == "patient" and not self.recovered():
                return
            time.sleep(chance.uniform(0, LONGEST_WAIT_SECONDS[manner]))
            if not wait_for(lambda: self._kill_one(chance), self._deadline_seconds):
                self.course.hung = (
                    f"no process for {self._deadline_seconds:.0f} s after kill {self.course.kills}"
                )
                return

    def recovered(self) -> bool:
        """Whether all train again, in time."""
        at = wait_for(lambda: self._witness.trained_since(self._struck_at), self._deadline_seconds)
        if at is None:
            self.course.hung = (
                f"no step of all for {self._deadline_seconds:.0f} s after kill {self.course.kills}"
            )
            return False
        if self.course.kills:
            self.course.recoveries[self._got_further].append(at - self._struck_at)
        return True

    def _kill_one(self, chance: random.Random) -> bool | None:
        """None if there was none, or the one chosen has just been stopped by its agent."""
        victims = self._training()
        if not victims:
            return None
        was_forming, struck_at = self._witness.trained_since(self._struck_at) is None, time.monotonic()
        try:
            os.kill(chance.choice(victims).pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        self._got_further, self._highest = self._witness.highest > self._highest, self._witness.highest
        self._struck_at = struck_at
        self.course.while_forming += was_forming
        self.course.kills += 1
        return True

    def _training(self) -> list[TrainingProcess]:
        return [
            process
            for pod in jobs.current_pods(self._observation, JOB)
            for process in self._cluster.training_processes(self._observation.namespace, pod)
        ]


def manifest(cluster: EmbeddedCluster, events: Path) -> Object:
    return jobs.scripted(
        cluster,
        JOB,
        WORKERS,
        ["dlr", "run", f"--nproc-per-node={PROCESSES_PER_WORKER}", str(SCRIPT)],
        env={"EVENTS_DIR": str(events)},
        resources={},
        worker={"restartCount": MOST_RESTARTS},
    )


def footprints(cluster: EmbeddedCluster, observation: Observation) -> dict[str, Footprint]:
    """Return the footprints of agents and controller when all is quiet."""
    time.sleep(QUIET_SECONDS)
    controller = cluster.control_plane(CONTROLLER).pid()
    assert controller is not None
    pods = jobs.current_pods(observation, JOB)
    taken = {f"agent {pod['metadata']['name']}": footprint(_agents_processes(pod)) for pod in pods}
    return taken | {"controller": footprint([controller])}


def _agents_processes(pod: Object) -> list[int]:
    """The agent, and of what descends from it (its warm parent, or what it forgot) all but the ranks."""
    mine = [
        pid
        for pid in processes.all_pids()
        if (variables := processes.environment(pid)).get("DLR_POD_UID") == pod["metadata"]["uid"]
        and "LOCAL_RANK" not in variables
    ]
    below = {child for pid in mine for child in descendants(pid)}
    return sorted({*mine, *(pid for pid in below if "LOCAL_RANK" not in processes.environment(pid))})


def complaints(course: Course, witness: Witness, observation: Observation) -> list[str]:
    """All that should not have been."""
    worlds = {number: len(found) for number, found in jobs.worlds(observation, JOB).items()}
    split = [f"round {number} had {count} worlds" for number, count in worlds.items() if count > 1]
    return [*([course.hung] if course.hung else []), *split, *witness.wrong, *witness.lost_checkpoints()]


def report(course: Course, witness: Witness, found: Sequence[str], sizes: str, now: Circumstances) -> str:
    further, held = (_spread(course.recoveries[got_further]) for got_further in (True, False))
    told = "\n".join(f"* {sentence}" for sentence in found) or "None of it happened."
    return f"""# Endurance

{course.kills} kills in one job's life: SIGKILL of a random rank at a random moment, {course.while_forming}
of them while the next world was still forming; {WORKERS} agents with {PROCESSES_PER_WORKER} processes each,
and a checkpoint every few steps. What must never be: a hang, two worlds in one round, a rank that goes back
to an earlier world, a checkpoint that was saved and is not resumed from.

{told}

{witness.worlds} worlds trained, {witness.steps} steps of all ranks together. From a kill to the next step of
all, where nobody struck in between: {further}. That is
where training had got further since the kill before. Where it had not, because the world still formed or
still did again what was lost: {held}; there it is made to
wait, 1 s, 2 s, 4 s and so on, before it is tried again.

What is taken after {WARM_UP_KILLS} kills and at the end, while all train; of an agent with its warm parent:

{sizes}

Measured on {date.today()} with {os.cpu_count()} CPU cores in {now.minutes:.0f} minutes; load {now.load:.1f}
before. To run it again:

    {now.command}
"""


def _spread(times: Sequence[float]) -> str:
    if not times:
        return "never"
    return f"median {statistics.median(times):.2f} s, worst {max(times):.2f} s, of {len(times)}"


def endure(cluster: EmbeddedCluster, kills: int, seed: int, deadline_seconds: float) -> tuple[str, bool]:
    """The report, and whether all was well."""
    load, begun_at, chance = os.getloadavg()[0], time.monotonic(), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="endurance-") as directory, cluster.namespace(JOB) as observation:
        cluster.apply(manifest(cluster, Path(directory)), observation.namespace)
        witness = Witness(Path(directory))
        killer = Killer(cluster, observation, witness, deadline_seconds)
        before: dict[str, Footprint] = {}
        if killer.recovered():
            killer.strike(min(WARM_UP_KILLS, kills), chance)
        if not killer.course.hung and killer.recovered():
            before = footprints(cluster, observation)
            killer.strike(kills - killer.course.kills, chance)
        after = footprints(cluster, observation) if not killer.course.hung and killer.recovered() else {}
        found = complaints(killer.course, witness, observation)
        if killer.course.hung:
            print(observation.describe(), file=sys.stderr)
        minutes = (time.monotonic() - begun_at) / 60
        command = " ".join(["python -m benchmarks.endurance", *sys.argv[1:]])
        now = Circumstances(load, minutes, deadline_seconds, command)
        return report(killer.course, witness, found, growth(before, after), now), not found


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills without end, and what they must not do.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deadline-seconds", type=float, default=60)
    parser.add_argument("--report", type=Path, default=REPORT)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and leave nothing behind
    cluster = EmbeddedCluster(nodes=WORKERS)
    try:
        cluster.start()
        text, well = endure(cluster, args.kills, args.seed, args.deadline_seconds)
    finally:
        cluster.stop()
    args.report.write_text(text)
    print(text)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
