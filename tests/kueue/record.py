"""Make the recordings that the tests replay out of the original traces of a real Kueue.

    python -m tests.kueue.record /work/shared/research/traces

takes of each trace what `test_traces.py` compares, one JSON object a line, and writes it to `traces/NAME.jsonl.gz`:
`base` (Unix seconds at t = 0), requests with the answer if they were refused, each version of a Workload as the watch
gave it (`seen`), what each ClusterQueue says is reserved (`usage`), and the notes of who recorded it.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kueue.objects import seconds

FOLDER = Path(__file__).parent / "traces"
LEFT_OUT = ("18", "21", "22", "23", "24", "25", "26", "27", "28", "30", "31")
"""Of the Pod integration, of scheduling.k8s.io, of evictions: no Workload of Kueue's alone."""
_METADATA = (
    "name",
    "namespace",
    "uid",
    "generation",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
)
_KINDS = ("Workload", "LocalQueue", "ClusterQueue", "ResourceFlavor", "AdmissionCheck")
_WRITE_SECONDS = 0.06
"""A line of the watch comes so long after its write at most."""

Line = dict[str, Any]


def steps(lines: list[Line]) -> Iterator[Line]:
    yield {"base": _base(lines)}
    namespace = next(line["object"]["metadata"]["namespace"] for line in lines if _is_seen(line))
    for index, line in enumerate(lines):
        at = {"t": line["t"]}
        if line["verb"] == "note":
            yield at | {"note": line["text"]}
        elif line["verb"] == "request" and line["kind"] in _KINDS:
            yield at | _request(line, namespace) | _refusal(lines[index + 1 :], line)
        elif _is_seen(line):
            yield at | {"seen": line["name"], "namespace": namespace, "object": _pruned(line)}
        elif line["kind"] == "ClusterQueue" and line["verb"] in ("ADDED", "MODIFIED"):
            flavors = line["object"]["status"].get("flavorsReservation") or ()
            totals = {
                flavor["name"]: {each["name"]: each["total"] for each in flavor["resources"]}
                for flavor in flavors
            }
            yield at | {"usage": line["name"], "totals": totals}


def _is_seen(line: Line) -> bool:
    return line["kind"] == "Workload" and line["verb"] in ("ADDED", "MODIFIED", "DELETED")


def _base(lines: list[Line]) -> float:
    """Return the time at t = 0, from the whole seconds in which Workloads were created."""
    least, most = 0.0, float("inf")
    for line in lines:
        if _is_seen(line) and line["verb"] == "ADDED":
            created = seconds(line["object"]["metadata"]["creationTimestamp"])
            least = max(least, created - line["t"])
            most = min(most, created + 1 - line["t"] + _WRITE_SECONDS)
    return round((least + most) / 2, 3)


def _request(line: Line, namespace: str) -> Line:
    body = line.get("object")
    if line.get("subresource") == "status" and line["kind"] == "Workload":
        body = {"status": body["status"]}
    found = {"request": line["method"], "kind": line["kind"], "name": line["name"], "namespace": namespace}
    return found | {"subresource": line.get("subresource"), "body": body}


def _refusal(rest: list[Line], request: Line) -> Line:
    for line in rest:
        if line["name"] != request["name"] or line["kind"] != request["kind"]:
            continue
        if line["verb"] == "refused":
            return {"refused": {"code": line["code"], "message": line["object"]["message"]}}
        if line["verb"] == "request" or line["actor"] == request["actor"]:
            break
    return {}


def _pruned(line: Line) -> Line | None:
    if line["verb"] == "DELETED":
        return None
    obj = line["object"]
    metadata = {
        key: value for key, value in obj["metadata"].items() if key in (*_METADATA, "deletionTimestamp")
    }
    return {"metadata": metadata, "spec": obj["spec"], "status": obj.get("status") or {}}


def main(source: Path) -> None:
    FOLDER.mkdir(exist_ok=True)
    for trace in sorted(source.glob("*.jsonl")):
        if trace.name.startswith(LEFT_OUT):
            continue
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        text = "".join(json.dumps(step, separators=(",", ":")) + "\n" for step in steps(lines))
        (FOLDER / f"{trace.name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
