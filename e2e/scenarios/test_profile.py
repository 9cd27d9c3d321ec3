"""`dlr job profile` on a whole cluster: an annotation asks, and the log of the rank's Pod has the answer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from crds.log_parts import MARK
from e2e.cluster import Capability, Cluster
from e2e.deaths import Mortals
from e2e.observation import Observation

pytestmark = pytest.mark.needs(Capability.STORAGE)


def test_a_profile_comes_through_the_log(cluster: Cluster, observation: Observation, tmp_path: Path) -> None:
    mortals = Mortals(cluster, observation)
    mortals.submit(2)
    mortals.wait_until_training()
    trace = tmp_path / "trace.json.gz"
    of = (mortals.name, "-n", observation.namespace, "--rank", "1")
    print(cluster.dlr("job", "profile", *of, "--seconds", "15", "-f", str(trace)))
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any("all_reduce" in str(event.get("name")) for event in events)
    assert MARK not in cluster.dlr("job", "logs", *of)
    mortals.finish()
