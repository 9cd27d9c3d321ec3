"""How soon a job says that its Pods can never be made: ten templates, `kubectl apply` to the sentence.

    dlr up
    python -m benchmarks.refusals

Each template passes the CRD's schema, so that the API server judges its first Pod. It takes the
cluster of the kubeconfig, makes the jobs there and deletes them. The exit code is 1 if any said nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

from dlr.kube.api import ELASTICJOBS, Api
from dlr.kube.connection import connect
from dlr.kube.errors import ApiError

JSON = dict[str, Any]

MAIN: JSON = {"name": "main", "image": "x"}
BROKEN: dict[str, JSON] = {
    "cpu-lots": {"containers": [MAIN | {"resources": {"limits": {"cpu": "lots"}}}]},
    "container-name": {"containers": [MAIN | {"name": "Main_1"}]},
    "no-such-volume": {"containers": [MAIN | {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}]},
    "init-name": {"containers": [MAIN], "initContainers": [{"name": "A B", "image": "x"}]},
    "init-twice": {"containers": [MAIN], "initContainers": [MAIN]},
    "volume-twice": {"containers": [MAIN], "volumes": [{"name": "a"}, {"name": "a"}]},
    "restart-policy": {"containers": [MAIN], "restartPolicy": "Sometimes"},
    "pull-policy": {"containers": [MAIN | {"imagePullPolicy": "Maybe"}]},
    "priority-class": {"containers": [MAIN], "priorityClassName": "urgent"},
    "port": {"containers": [MAIN | {"ports": [{"containerPort": 99_999}]}]},
}
LIMIT_SECONDS = 30.0


def main() -> int:
    api = Api(connect(None, None, None))
    print(f"{'template':16} {'kubectl begun':>14} {'kubectl ended':>14}  sentence")
    begun: list[float] = []
    ended: list[float] = []
    for name, spec in BROKEN.items():
        found = measure(api, f"broken-{name}", spec)
        if found is None:
            print(f"{name:16} said nothing in {LIMIT_SECONDS:g} s")
            return 1
        after_begin, after_end, sentence = found
        begun.append(after_begin)
        ended.append(after_end)
        print(f"{name:16} {after_begin:13.2f}s {after_end:13.2f}s  {sentence[:120]}")
    for what, seconds in (("begun", begun), ("ended", ended)):
        print(f"from kubectl {what}: median {median(seconds):.2f} s, most {max(seconds):.2f} s")
    return 0


def measure(api: Api, name: str, spec: JSON) -> tuple[float, float, str] | None:
    """Seconds from the begin and from the end of `kubectl apply` to the sentence, and the sentence."""
    job = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": {"worker": {"replicas": 2, "template": {"spec": spec}}}},
    }
    began = time.monotonic()
    subprocess.run(
        ["kubectl", "apply", "-f", "-"],
        input=json.dumps(job),
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    applied = time.monotonic()
    try:
        while time.monotonic() - applied < LIMIT_SECONDS:
            sentence = said(api, name)
            now = time.monotonic()
            if sentence is not None:
                return now - began, now - applied, sentence
            time.sleep(0.01)
        return None
    finally:
        subprocess.run(
            ["kubectl", "delete", "ej", name, "--wait=false"], check=True, stdout=subprocess.DEVNULL
        )


def said(api: Api, name: str) -> str | None:
    """Why its Pods are refused, as the job says."""
    try:
        warnings = (api.get(ELASTICJOBS, name).get("status") or {}).get("warnings") or []
    except ApiError:
        return None
    return next(
        (str(warning["message"]) for warning in warnings if warning["type"] == "PodsNotAccepted"), None
    )


if __name__ == "__main__":
    sys.exit(main())
