"""Pods of several containers, as kubelets leave them."""

from __future__ import annotations

from typing import Any

from crds.names import ANNOTATION_LAUNCHER, ENV_JOB_KEY
from tests.reconcilers.build import pod

JSON = dict[str, Any]
RUNS: JSON = {"state": {"running": {"startedAt": "2026-01-01T11:59:00Z"}}, "restartCount": 0}
STARTS: JSON = {"state": {"waiting": {"reason": "ContainerCreating"}}, "restartCount": 0}


def ended(code: int, reason: str = "", message: str = "") -> JSON:
    reason = reason or ("Error" if code else "Completed")
    return {"state": {"terminated": _end(code, reason, message)}, "restartCount": 0}


def crash_loop(code: int, message: str = "", restarts: int = 1, reason: str = "") -> JSON:
    """The container waits for its next start."""
    last = _end(code, reason or ("Error" if code else "Completed"), message)
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
    return {"state": {"waiting": waiting}, "lastState": {"terminated": last}, "restartCount": restarts}


def again(code: int, message: str = "", restarts: int = 1) -> JSON:
    """The container was started again, and runs."""
    return {**RUNS, "lastState": crash_loop(code, message)["lastState"], "restartCount": restarts}


def pod_with(
    main: JSON | None,
    *,
    companion: JSON | None = None,
    native: JSON | None = None,
    init: JSON | None = None,
    policy: str = "Never",
    phase: str = "Running",
    deleted: bool = False,
    first: bool = False,
    launcher: str = "",
    **status: Any,
) -> JSON:
    """A Pod whose training container is `main`.

    Args:
        companion: a plain sidecar, `proxy`.
        native: a native sidecar, `mesh`.
        init: a plain init container, `fetch`.
        first: the training container is listed first; else a webhook has put the plain sidecar before it.
        launcher: the launcher that its command is certain to start.
    """
    env = [{"name": ENV_JOB_KEY, "value": "k"}]
    mains = [({"name": "main", "image": "x", "env": env}, main)]
    if companion is not None:
        mains.insert(1 if first else 0, ({"name": "proxy", "image": "x"}, companion))
    inits = []
    if init is not None:
        limits = {"limits": {"memory": "200Mi"}}
        inits.append(({"name": "fetch", "image": "x", "resources": limits}, init))
    if native is not None:
        inits.append(({"name": "mesh", "image": "x", "restartPolicy": "Always"}, native))
    made = pod(0, phase, deleted=deleted, **status)
    if launcher:
        made["metadata"]["annotations"] = {ANNOTATION_LAUNCHER: launcher}
    made["spec"] |= {
        "restartPolicy": policy,
        "containers": [spec for spec, _ in mains],
        "initContainers": [spec for spec, _ in inits],
    }
    for kind, found in (("containerStatuses", mains), ("initContainerStatuses", inits)):
        made["status"][kind] = [{"name": spec["name"], **said} for spec, said in found if said is not None]
    return made


def environment(pod: JSON, container: int = 0) -> JSON:
    """The variables of a container, with their values or sources."""
    return {
        e["name"]: e.get("value", e.get("valueFrom")) for e in pod["spec"]["containers"][container]["env"]
    }


def _end(code: int, reason: str, message: str) -> JSON:
    return {"exitCode": code, "reason": reason, "message": message}
