from __future__ import annotations
import os, signal, time, random
import pytest
from e2e.cluster import Capability, Cluster
from e2e.exact_groups import ExactGroups
from e2e.observation import Observation

LIVES = os.environ.get("PROBE_LIVES", "1") == "1"
N = int(os.environ.get("PROBE_N", "10"))


def test_probe(cluster: Cluster, observation: Observation) -> None:
    run = ExactGroups(cluster, observation, "living", 2, minimum=1, lives=LIVES)
    run.wait_until(2)
    chance = random.Random(3)
    for number in range(N):
        run.wait_for_steps(20)
        before = run.wait_until(2)
        group, rank = chance.randrange(2), chance.randrange(2)
        killed = time.monotonic()
        os.kill(before[group][rank], signal.SIGKILL)
        run.wait_for_steps(20, 1 - group)
        after = run.wait_until(2)
        own, other = (run.longest_step_seconds(each, killed) for each in (group, 1 - group))
        print(
            f"{time.strftime('%H:%M:%S')} group {group} rank {rank}: own {own:.2f} s, other {other:.2f} s, stays {after[group][1 - rank] == before[group][1 - rank]}",
            flush=True,
        )
        if own > 3:
            for g in (0, 1):
                print(cluster.dlr("job", "logs", f"living-group-{g}", "-n", observation.namespace)[-6000:])
    print(run.assert_equal_to_a_replay())
