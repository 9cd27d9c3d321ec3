"""Injects the agent into a Pod whose image needs Python and torch alone, and nothing of dlr.

The first container mounts a volume with the agent, a zip and its launchers: the agent's image itself, or a
copy that an init container makes of it. The container's command finds `dlr`, `torchrun` and `dlrover-run`
there before any of the image's own. Kubernetes runs `command` followed by `args`, without a shell
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
"""Environment variable with the launchers' Python; without it they use the `python3` on PATH."""

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
"""Annotation with the volumes in spite of which the cluster autoscaler may drain the node.
https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md"""


def inject_agent(pod: Object, source: AgentSource, *, images_mount: bool = False) -> None:
    """Change a Pod so that its first container has the agent.

    Args:
        images_mount: whether all nodes can mount images (`image_volumes.py`).
    """
    container = pod["spec"]["containers"][0]
    if launcher := launcher_of(container):
        pod["metadata"].setdefault("annotations", {})[names.ANNOTATION_LAUNCHER] = launcher
    mount = {"name": VOLUME, "mountPath": source.mount_path, "readOnly": True}
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    command, arguments = container.get("command") or [], container.get("args") or []
    words, python = [*command, *arguments], None
    home = source.mount_path
    if is_image := images_mount and bool(words) and launched(words) is not None:
        home = posixpath.join(source.mount_path, source.path.lstrip("/"))
        _mount_image(pod["spec"], source)
    else:
        _mount_copy(pod, source)
    if command or (words and _is_program(words[0])):
        # Without a command, the image has no entrypoint, or one that runs its arguments.
        container["command" if command else "args"], python = with_agent(words, home, is_image=is_image)
    if command:
        container.pop("args", None)
    if python and all(variable["name"] != ENV_PYTHON for variable in container.get("env") or ()):
        container["env"] = [*(container.get("env") or ()), {"name": ENV_PYTHON, "value": python}]


def _mount_image(spec: Object, source: AgentSource) -> None:
    """Add the agent's image as a volume, mounted at its root, since some runtimes ignore a subPath.

    https://kubernetes.io/docs/concepts/storage/volumes/#image
    """
    image = {"reference": source.image, "pullPolicy": "IfNotPresent"}
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": VOLUME, "image": image}]


def _mount_copy(pod: Object, source: AgentSource) -> None:
    """Add a volume into which an init container copies the agent."""
    spec, annotations = pod["spec"], pod["metadata"].setdefault("annotations", {})
    annotations[SAFE_TO_EVICT] = ",".join(filter(None, [annotations.get(SAFE_TO_EVICT), VOLUME]))
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": VOLUME, "emptyDir": {}}]
    copying = _init_container(spec["containers"][0], source)
    spec["initContainers"] = [copying, *(spec.get("initContainers") or ())]


def with_agent(words: Sequence[str], home: str, *, is_image: bool = False) -> tuple[list[str], str | None]:
    """The container's command with the agent, and the Python that the command names, if any.

    Args:
        words: `command` and `args`, not empty.
        home: mount path of the agent's files.
        is_image: whether that is a noexec image volume; the command then starts a launcher.
    """
    launched = _launched(words, home)
    if launched is not None:
        command, python = launched
        return (["/bin/sh", *command] if is_image else command), python
    paths = _paths(home)
    text = _place_of_login_text(words) if SHELL.fullmatch(posixpath.basename(words[0])) else None
    if text is not None:
        return [*words[:text], paths + words[text], *words[text + 1 :]], None
    # All other words stay as they are: a shell whose text is a single command execs it, so the agent gets the
    # Pod's SIGTERM. With another command in front of it, some shells do not.
    return ["/bin/sh", "-c", f'{paths}exec "$0" "$@"', *words], None


def _launched(words: Sequence[str], home: str) -> tuple[list[str], str | None] | None:
    """A command that names torchrun or dlr, with our launcher in its place; None for any other."""
    started = launched(words)
    if started is None:
        return None
    folder, program = posixpath.split(words[0])
    # A program with an absolute path belongs to the Python beside it.
    python = words[0] if PYTHON.fullmatch(program) else posixpath.join(folder, "python3") if folder else None
    return [f"{home}/bin/{started.name}", *started.arguments], python


def _is_program(word: str) -> bool:
    """Whether this word starts a command, and is no argument of the image's entrypoint."""
    name = posixpath.basename(word)
    return name in (*LAUNCHERS, "dlr") or any(kind.fullmatch(name) for kind in (SHELL, PYTHON))


def _place_of_login_text(words: Sequence[str]) -> int | None:
    """Position of the text that a login shell's command runs; None for other shells and commands.

    A login shell reads its profile, which may set PATH, before it runs the text.
    """
    place, is_login = place_of_text(words)
    return place if is_login else None


def _paths(home: str) -> str:
    """Shell text that puts our launchers first on PATH, and makes `import dlr` work in any Python."""
    python_path = f"${{PYTHONPATH:+$PYTHONPATH:}}{home}/{names.AGENT_ZIP}"
    return f'export PATH="{home}/bin:$PATH" PYTHONPATH="{python_path}"\n'


def _init_container(container: Object, source: AgentSource) -> Object:
    """The init container. It runs as the training container's user, who reads the copy, with no more rights.

    It sets nothing that the Pod sets for all its containers, or that admission sets for each.
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
    """CPU and memory of the training container, which does not use them yet.

    So the Pod keeps its quality of service, and fits every LimitRange and quota that it fits without us.
    https://kubernetes.io/docs/concepts/workloads/pods/init-containers/
    """
    resources = container.get("resources") or {}
    return {
        kind: {name: amount for name, amount in resources[kind].items() if name in ("cpu", "memory")}
        for kind in ("requests", "limits")
        if resources.get(kind)
    }
