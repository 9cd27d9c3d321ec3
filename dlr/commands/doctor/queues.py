"""Checks of Kueue for `dlr doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controller.resources import CRDS
from dlr.commands.install.installer import get_or_none
from dlr.kube.api import CONFIGMAPS, Api

KIND = "workloads.kueue.x-k8s.io"
VERSION = "v1beta2"
FRAMEWORK = "ElasticJob.v1alpha1.elastic.iml.github.io"
CONFIGURATION = ("kueue-system", "kueue-manager-config")
"""Namespace and name of the ConfigMap in Kueue's own manifests."""


@dataclass(frozen=True)
class KueueFacts:
    versions: tuple[str, ...]
    """API versions in which its Workloads are served."""
    configuration: str = ""
    """Configuration of its manager, if it can be read."""

    @property
    def charges_twice(self) -> bool:
        """Whether its Pod integration is on, and does not list ElasticJob as an external framework.

        https://kueue.sigs.k8s.io/docs/reference/kueue-config.v1beta2/
        """
        lines = {line.strip().removeprefix("- ").strip("\"'") for line in self.configuration.splitlines()}
        return "pod" in lines and FRAMEWORK not in self.configuration


def look(api: Api) -> KueueFacts | None:
    """Read the facts about Kueue; None if it is not installed.

    Raises:
        ApiError: the API server refuses a request.
    """
    crd = get_or_none(api, CRDS, KIND)
    if crd is None:
        return None
    served = tuple(each["name"] for each in crd["spec"]["versions"] if each.get("served"))
    namespace, name = CONFIGURATION
    found = get_or_none(api.within(namespace), CONFIGMAPS, name)
    return KueueFacts(served, "\n".join(((found or {}).get("data") or {}).values()))


def sentences(kueue: KueueFacts | None, *, is_asked: bool) -> Iterator[tuple[bool, str]]:
    """Yield sentences about Kueue, each with whether all is well.

    Args:
        is_asked: whether the controller runs with --kueue.
    """
    if kueue is None:
        if is_asked:
            yield (
                False,
                "The controller runs with --kueue, and Kueue is not here: install version 0.19.",
            )
        return
    if VERSION not in kueue.versions:
        yield False, f"Kueue serves {', '.join(kueue.versions)}, and dlr needs {VERSION}: upgrade it to 0.19."
    elif is_asked:
        yield True, f"Jobs with the label kueue.x-k8s.io/queue-name wait in queues (Kueue's {VERSION})."
    else:
        yield True, "Kueue is here; jobs can wait in its queues after: dlr install --kueue"
    if is_asked and kueue.charges_twice:
        yield (
            False,
            "Kueue's Pod integration is on, and charges Pods of jobs a second time where a LocalQueue is "
            f"called default: add {FRAMEWORK} to integrations.externalFrameworks of its configuration.",
        )
