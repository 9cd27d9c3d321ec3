"""Brings the agent into an image that has nothing of ours: it needs Python and torch alone.

An init container copies the agent, one zip and its launchers, into a volume that the first container mounts.
That container's command then finds `dlr`, `torchrun` and `dlrover-run` there before any of the image's own.
Kubernetes runs `command` and `args` one behind the other, without a shell
(https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/).
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from controller.resources import Object
from crds import names
from reconcilers.observed.command import (
    LAUNCHERS,
    PYTHON,
    SHELL,
    launched,
    launcher_of,
    place_of_text,
)
from reconcilers.observed.options import AgentSource

VOLUME = "dlr-agent"
INIT_CONTAINER = "dlr-agent"
ENV_PYTHON = "DLR_PYTHON"
"""Which Python the launchers start the agent with, if not the `python3` on PATH."""

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
"""Names the volumes whose loss does not matter, so that the autoscaler may drain a node in spite of them.
https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md"""


def inject_agent(pod: Object, source: AgentSource) -> None:
    """Change a Pod so that its first container has the agent."""
    spec = pod["spec"]
    container = spec["containers"][0]
    annotations = pod["metadata"].setdefault("annotations", {})
    if launcher := launcher_of(container):
        annotations[names.ANNOTATION_LAUNCHER] = launcher
    annotations[SAFE_TO_EVICT] = ",".join(filter(None, [annotations.get(SAFE_TO_EVICT), VOLUME]))
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": VOLUME, "emptyDir": {}}]
    spec["initContainers"] = [_init_container(container, source), *(spec.get("initContainers") or ())]
    mount = {"name": VOLUME, "mountPath": source.mount_path, "readOnly": True}
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    command, arguments = container.get("command") or [], container.get("args") or []
    python = None
    if command:
        container["command"], python = with_agent([*command, *arguments], source.mount_path)
        container.pop("args", None)
    elif arguments and _is_program(arguments[0]):
        # There is no entrypoint, or one that runs its arguments.
        container["args"], python = with_agent(arguments, source.mount_path)
    if python and all(variable["name"] != ENV_PYTHON for variable in container.get("env") or ()):
        container["env"] = [*(container.get("env") or ()), {"name": ENV_PYTHON, "value": python}]


def with_agent(words: Sequence[str], mount_path: str) -> tuple[list[str], str | None]:
    """A container's command that runs with the agent, and the Python that it names for it, if it names one.

    Args:
        words: `command` and `args`, not empty.
        mount_path: where the container sees the agent's files.
    """
    launched = _launched(words, mount_path)
    if launched is not None:
        return launched
    paths = _paths(mount_path)
    text = _place_of_login_text(words) if SHELL.fullmatch(posixpath.basename(words[0])) else None
    if text is not None:
        return [*words[:text], paths + words[text], *words[text + 1 :]], None
    # Elsewhere no word is changed: a shell whose text is one command becomes that command, so that it is the
    # agent which gets the Pod's SIGTERM. With another command in front, some shells stay.
    return ["/bin/sh", "-c", f'{paths}exec "$0" "$@"', *words], None


def _launched(words: Sequence[str], mount_path: str) -> tuple[list[str], str | None] | None:
    """A command that starts torchrun or us by name, with our launcher in its place; None for any other."""
    started = launched(words)
    if started is None:
        return None
    folder, program = posixpath.split(words[0])
    # Beside an absolute path is the Python that it belongs to.
    python = words[0] if PYTHON.fullmatch(program) else posixpath.join(folder, "python3") if folder else None
    return [f"{mount_path}/bin/{started.name}", *started.arguments], python


def _is_program(word: str) -> bool:
    """Whether this is a command's first word, and no argument of an image's own program."""
    name = posixpath.basename(word)
    return name in (*LAUNCHERS, "dlr") or any(kind.fullmatch(name) for kind in (SHELL, PYTHON))


def _place_of_login_text(words: Sequence[str]) -> int | None:
    """Which word of a login shell's command is the text that it runs; None for other shells and commands.

    A login shell's profile may set PATH, and comes before the text.
    """
    place, is_login = place_of_text(words)
    return place if is_login else None


def _paths(mount_path: str) -> str:
    """The beginning of a shell's text: our launchers come first, and `import dlr` works in any Python."""
    python_path = f"${{PYTHONPATH:+$PYTHONPATH:}}{mount_path}/{names.AGENT_ZIP}"
    return f'export PATH="{mount_path}/bin:$PATH" PYTHONPATH="{python_path}"\n'


def _init_container(container: Object, source: AgentSource) -> Object:
    """A container that runs as the training container's user, who reads its files, and with no more rights.

    It leaves alone what the Pod sets for all its containers, and what admission sets for each.
    """
    context = container.get("securityContext") or {}
    kept = ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile")
    return {
        "name": INIT_CONTAINER,
        "image": source.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["cp", "-R", f"{source.path}/.", source.mount_path],
        "resources": _resources(container),
        "securityContext": {
            **{key: context[key] for key in kept if key in context},
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": VOLUME, "mountPath": source.mount_path}],
    }


def _resources(container: Object) -> Object:
    """CPU and memory of the training container.

    They are free by then. So the Pod keeps its quality of service, and meets every LimitRange and quota that
    it meets without us. https://kubernetes.io/docs/concepts/workloads/pods/init-containers/
    """
    asked = container.get("resources") or {}
    return {
        kind: {name: amount for name, amount in (asked.get(kind) or {}).items() if name in ("cpu", "memory")}
        for kind in ("requests", "limits")
        if asked.get(kind)
    }
