"""A Pod's containers by name and role, as its spec and its status have them.

The training container is the one with the job's key, wherever a webhook has moved it among `containers`.
Containers beside or before it do not say how training ended.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-states
https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from crds import names

CRASH_LOOP = "CrashLoopBackOff"
"""Waiting reason of a container that its kubelet will start again."""
PULL_SECRETS = "imagePullSecrets"
"""Field of Pods and ServiceAccounts."""
_MARK = re.compile(rf"dlr: ([\w-]+) {re.escape(names.HAS_BEGUN)}(?:\n|$)")
"""Line that a launcher leaves until its agent has reported (`agent/report/launch_mark.py`)."""
TERMINAL_PHASES = ("Succeeded", "Failed")

Object = Mapping[str, Any]


def has_ended(obj: Object) -> bool:
    """Whether the phase of a raw Pod (with its sidecars), ElasticWorker or ElasticJob is a final one."""
    return (obj.get("status") or {}).get("phase") in TERMINAL_PHASES


class Role(StrEnum):
    TRAINING = "training container"
    INIT = "init container"
    SIDECAR = "native sidecar"
    """An init container that runs beside the others."""
    COMPANION = "sidecar"
    """One of `containers` beside the training container."""


_ORDER = {role: place for place, role in enumerate(Role)}


@dataclass(frozen=True)
class Container:
    """One container of a Pod."""

    name: str
    role: Role
    spec: Object
    """Empty where the Pod's spec does not list it."""
    status: Object | None
    """None where the Pod's status does not list it."""
    policy: str
    """Its restart policy."""

    @property
    def is_running(self) -> bool:
        return "running" in self._state

    @property
    def waiting_reason(self) -> str | None:
        """Reason why it does not run yet, or not now; None where it runs or has ended."""
        return (self._state.get("waiting") or {}).get("reason") or None

    @property
    def end(self) -> Object | None:
        """End of its last run; None while it runs again."""
        return None if self.is_running else self._state.get("terminated") or self._last_end

    @property
    def newest_end(self) -> Object | None:
        """End of its last finished run, even if it runs again."""
        return self._state.get("terminated") or self._last_end

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and is not started again."""
        end = self._state.get("terminated")
        return bool(end) and (self.policy == "Never" or (self.policy == "OnFailure" and succeeded(end)))

    @property
    def has_started(self) -> bool:
        return self.is_running or self.newest_end is not None

    @property
    def has_passed_startup(self) -> bool:
        """Whether its startup probe has passed, where it has one."""
        return bool((self.status or {}).get("started"))

    @property
    def restarted_ends(self) -> int:
        """Number of ends after which its kubelet started it again, or will."""
        waits = self.waiting_reason == CRASH_LOOP or ("terminated" in self._state and not self.is_over)
        return int((self.status or {}).get("restartCount") or 0) + waits

    @property
    def _state(self) -> Object:
        return (self.status or {}).get("state") or {}

    @property
    def _last_end(self) -> Object | None:
        return ((self.status or {}).get("lastState") or {}).get("terminated")


def succeeded(end: Object | None) -> bool:
    """Whether a container's end has exit code 0."""
    return end is not None and end.get("exitCode") == 0


def failed(end: Object | None) -> bool:
    """Whether a container's end has another exit code."""
    return end is not None and end.get("exitCode") != 0


def exit_words(code: int | None) -> str:
    """Return an exit code in words, with the signal that it stands for: `exit code 137 (SIGKILL)`."""
    number = 0 if code is None else -code if code < 0 else code - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else ""
    return f"exit code {code}" + (f" ({name})" if name else "")


def begun_launcher(end: Object | None) -> str:
    """Return the launcher that began and never reported, by a container's termination message; else empty."""
    mark = _MARK.search((end or {}).get("message") or "")
    return mark[1] if mark else ""


def words_of(end: Object) -> str:
    """Return the termination message of a container's end, without a launcher's mark, which is no error."""
    return _MARK.sub("", end.get("message") or "")


def kept_of_container(container: Object) -> dict[str, Any]:
    """Return the fields of a container's spec that are read here; the controller's cache keeps no others."""
    kept = {field: container[field] for field in ("name", "restartPolicy") if field in container}
    if names.ENV_JOB_KEY in _variables(container):
        kept["env"] = [{"name": names.ENV_JOB_KEY}]
    if (limit := memory_limit(container)) is not None:
        kept["resources"] = {"limits": {"memory": limit}}
    return kept


def memory_limit(container: Object) -> Any:
    """Return the memory limit of a container in a Pod's spec, as it is written there; None without one."""
    return ((container.get("resources") or {}).get("limits") or {}).get("memory")


def containers_of(pod: Object) -> list[Container]:
    """Return the training container, then the others in the order in which they start."""
    training = training_container_name(pod)
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    policy = spec.get("restartPolicy") or "Never"  # as `builder.py` sets it
    found = []
    for kind, statuses in (
        ("initContainers", status.get("initContainerStatuses") or ()),
        ("containers", status.get("containerStatuses") or ()),
    ):
        specs = {each["name"]: each for each in spec.get(kind) or ()}
        known = {each.get("name", ""): each for each in statuses}
        for name in dict.fromkeys([*specs, *known]):
            container = specs.get(name, {})
            role, restarts = _role_and_policy(container, policy, is_init=kind == "initContainers")
            if role is Role.COMPANION and name == training:
                role = Role.TRAINING
            found.append(Container(name, role, container, known.get(name), restarts))
    found.sort(key=lambda each: each.role is not Role.TRAINING)
    return found


def training_container_name(pod: Object) -> str:
    """Return the name of the container with the job's key, or of the first if none has it."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    listed: Sequence[Object] = spec.get("containers") or ()
    with_key = (each for each in listed if names.ENV_JOB_KEY in _variables(each))
    first = next(with_key, None) or next(iter(listed or status.get("containerStatuses") or ()), {})
    return str(first.get("name", ""))


def training_container(containers: Iterable[Container]) -> Container:
    """Return the training container; an empty one if the Pod lists none."""
    found = next((each for each in containers if each.role is Role.TRAINING), None)
    return found or Container("", Role.TRAINING, {}, None, "Never")


def may_run(training: Container) -> bool:
    """Whether the training container runs or has no status yet; a stopped one is not silent."""
    return training.is_running or training.status is None


def to_blame(containers: Sequence[Container]) -> tuple[Container, Object] | None:
    """Return the container whose failure ended its Pod or keeps training from starting, and its end.

    Once the training container has started, no other container is to blame.
    """
    training = training_container(containers)
    suspects = [training] if training.has_started else sorted(containers, key=lambda each: _ORDER[each.role])
    return next(((each, each.end) for each in suspects if each.end is not None and failed(each.end)), None)


def _role_and_policy(container: Object, policy: str, *, is_init: bool) -> tuple[Role, str]:
    own = container.get("restartPolicy")
    if not is_init:
        return Role.COMPANION, own or policy
    if own == "Always":
        return Role.SIDECAR, own
    return Role.INIT, own or ("OnFailure" if policy == "Always" else policy)


def _variables(container: Object) -> set[str]:
    return {variable.get("name", "") for variable in container.get("env") or ()}
