"""The stand-in for the scheduler does what the real one did, as recorded in `traces/`.

These are recordings of Kubernetes 1.37.2 with GenericWorkload, two nodes of two GPUs; kept are Pods and PodGroups, with
the fields that scheduling goes by.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gang.scheduler import decide
from tests.reconcilers.api import merged

JSON = dict[str, Any]
TRACES = sorted((Path(__file__).parent / "traces").glob("*.jsonl"))
GPUS = {"node-a": 2, "node-b": 2}


class Replay:
    """The cluster as everybody but the scheduler writes it, scheduled by the stand-in."""

    def __init__(self) -> None:
        self.pods: dict[str, JSON] = {}
        self.groups: dict[str, JSON] = {}
        self.recorded: dict[str, JSON] = {}
        """Pods as the trace has them."""

    def play(self, line: JSON) -> None:
        obj, name = line["object"], line["object"]["metadata"]["name"]
        if line["kind"] == "PodGroup":
            self.groups[name] = obj
            if line["verb"] == "DELETED":
                del self.groups[name]
        else:
            self._play_pod(line["verb"], line["actor"], name, obj)
        for verdict in decide(list(self.pods.values()), self.groups, GPUS):
            self.pods[verdict.pod] = merged(self.pods[verdict.pod], verdict.patch())

    def _play_pod(self, verb: str, actor: str, name: str, obj: JSON) -> None:
        self.recorded[name] = obj
        if verb == "DELETED":
            del self.recorded[name]
            self.pods.pop(name, None)
        elif verb == "ADDED":
            self.pods[name] = obj
        elif actor != "scheduler":
            status = {key: value for key, value in obj["status"].items() if key != "conditions"}
            self.pods[name] = merged(self.pods[name], {"metadata": obj["metadata"], "status": status})


def words(pods: dict[str, JSON]) -> JSON:
    """Whether each Pod has a node, or else what is said of it."""
    return {
        name: bool(pod["spec"].get("nodeName")) or pod["status"].get("conditions")
        for name, pod in pods.items()
    }


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_after_each_step_of_a_trace_the_same_pods_have_nodes_and_the_others_hear_the_same(path: Path) -> None:
    replay, steps = Replay(), 0
    lines = [*map(json.loads, path.read_text().splitlines()), {"verb": "note", "text": "the end"}]
    for line in lines:
        if line["verb"] != "note":
            replay.play(line)
            continue
        steps += 1
        assert words(replay.pods) == words(replay.recorded), f"before: {line['text']}"
    assert steps >= 2
