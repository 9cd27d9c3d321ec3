"""Finds other controllers of ElasticJobs in the cluster: DLRover's operator, other installations of dlr.

DLRover and dlr share group, kind and name of two CRDs, so a cluster can have one definition of each, and each
job should have one controller. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.wording import some_of
from dlr.commands.install.kinds import container_of, is_ours
from dlr.job.report import FINISHED
from dlr.kube.api import JSON

DLROVER_LABEL = "control-plane=controller-manager"
"""Label of DLRover's operator, as of most operators that use kubebuilder."""
_HELM_RELEASE = "meta.helm.sh/release-name"
"""Annotation of Helm's objects: https://helm.sh/docs/chart_best_practices/labels/."""
_NAMESPACE_OPTION = "--namespace="
_NAMED_AT_MOST = 5


def foreign_crds(crds: Iterable[JSON]) -> list[str]:
    """Return the names of those CRDs that are not dlr's, which are in the category `dlr`."""
    return [crd["metadata"]["name"] for crd in crds if not is_ours(crd)]


def defines_jobs(foreign: Iterable[str]) -> bool:
    """Whether the cluster's ElasticJobs belong to another operator."""
    return any(name.startswith("elasticjobs.") for name in foreign)


def dlrover_operators(deployments: Iterable[JSON]) -> list[JSON]:
    """Return the Deployments of DLRover's operator that are not scaled to zero."""
    return [each for each in deployments if _is_dlrover(each) and each["spec"].get("replicas", 1) > 0]


def _is_dlrover(deployment: JSON) -> bool:
    containers = deployment["spec"]["template"]["spec"].get("containers") or []
    images = [container.get("image", "") for container in containers]
    return "dlrover" in deployment["metadata"]["name"] or any("elasticjob-controller" in i for i in images)


def unfinished(objects: Iterable[JSON], *, suspended: bool = True) -> list[JSON]:
    """Return the jobs or checks that have not ended.

    Args:
        suspended: whether to include suspended ones.
    """
    return [
        each
        for each in objects
        if (each.get("status") or {}).get("phase") not in FINISHED
        and (suspended or not each["spec"].get("suspend"))
    ]


def scope_of(deployment: JSON) -> str | None:
    """Return the namespace whose jobs a controller of dlr manages; None for all."""
    words = container_of(deployment).get("args") or ()
    named = [word.removeprefix(_NAMESPACE_OPTION) for word in words if word.startswith(_NAMESPACE_OPTION)]
    return named[-1] if named else None  # the last one counts


def why_not_beside(controllers: Iterable[JSON], namespace: str, jobs_namespace: str | None) -> str | None:
    """Explain why no controller may be installed in `namespace` for `jobs_namespace`; None if it may.

    Args:
        controllers: Deployments of dlr's controllers, in all namespaces.
    """
    for other in controllers:
        place, scope = other["metadata"]["namespace"], scope_of(other)
        if place == namespace and scope != jobs_namespace:
            return (
                f"The controller in {place} looks after {_scope(scope)}, and would now look after "
                f"{_scope(jobs_namespace)}: take it away first with `{uninstall_command(other)}`."
            )
        if place == namespace and (release := helm_release(other)):
            return (
                f"Helm keeps the controller in {place}: upgrade it with `helm upgrade {release} -n {place}`, "
                f"or take it away first with `{uninstall_command(other)}`."
            )
        if place != namespace and (None in (scope, jobs_namespace) or scope == jobs_namespace):
            return (
                f"A controller of dlr in {place} already looks after {_scope(scope)}; two would act on the "
                f"same jobs. Upgrade that one (--namespace {place}), or take it away first with "
                f"`{uninstall_command(other)}`."
            )
    return None


def why_not_taken_away(controllers: Iterable[JSON], namespace: str, jobs_namespace: str | None) -> str | None:
    """Explain why the installation in `namespace` for `jobs_namespace` may not be removed; None if it may.

    Names of cluster-wide objects depend only on the jobs' namespace, so they may be another controller's; so
    may the objects for workers of all namespaces, if only other controllers are left.
    """
    controllers = list(controllers)
    is_here = any(each["metadata"]["namespace"] == namespace for each in controllers)
    for other in controllers:
        place, scope = other["metadata"]["namespace"], scope_of(other)
        is_only_others = jobs_namespace is None and not is_here
        if is_only_others or (place == namespace) != (scope == jobs_namespace):
            return (
                f"The controller in {place} looks after {_scope(scope)}: "
                f"take that one away with `{uninstall_command(other)}`."
            )
        if place == namespace and helm_release(other):
            return f"Helm keeps the controller in {place}: take it away with `{uninstall_command(other)}`."
    return None


def helm_release(deployment: JSON) -> str | None:
    """Return the name of a Deployment's Helm release; None if Helm did not install it."""
    name: str | None = (deployment["metadata"].get("annotations") or {}).get(_HELM_RELEASE)
    return name


def uninstall_command(deployment: JSON) -> str:
    """Return the command that removes a controller's whole installation."""
    namespace, jobs_namespace = deployment["metadata"]["namespace"], scope_of(deployment)
    if release := helm_release(deployment):
        return f"helm uninstall {release} -n {namespace}"
    return f"dlr uninstall --namespace {namespace}" + (
        f" --jobs-namespace {jobs_namespace}" if jobs_namespace else ""
    )


def why_not_instead_of_dlrover(
    foreign: Sequence[str], operators: Sequence[JSON], jobs: Iterable[JSON], *, replace_crds: bool
) -> str | None:
    """Explain why DLRover's objects prevent an installation of dlr; None if they do not.

    Args:
        foreign: CRDs with dlr's names that another operator has defined.
        operators: running operators of DLRover.
        jobs: ElasticJobs of the cluster; they only matter if another operator has defined them.
    """
    if operators:
        return how_to_stop(operators[0])
    if not foreign:
        return None
    names = ", ".join(foreign)
    if not replace_crds:
        return (
            f"Another operator has defined {names} (DLRover's have these names), and a cluster has one "
            "definition of each. To have dlr's in their place, run it again with --replace-crds; "
            "docs/from-dlrover.md describes what happens to the jobs there, and how to go back."
        )
    left = unfinished(jobs)
    if left:
        return (
            f"Another operator's jobs have not ended: {names_of(left)}. dlr's controller would start them "
            "again; wait for them, or delete them."
        )
    return None


def how_to_stop(operator: JSON) -> str:
    """Explain how to stop an operator of DLRover's."""
    name, namespace = operator["metadata"]["name"], operator["metadata"]["namespace"]
    return (
        f"DLRover's operator runs ({namespace}/{name}), and would act on the same ElasticJobs as dlr's. "
        f"When its jobs have ended, stop it: kubectl scale deployment {name} -n {namespace} --replicas=0 "
        "(docs/from-dlrover.md tells the rest)."
    )


def names_of(objects: Sequence[JSON]) -> str:
    """Return the first names, and the number of others."""
    names = [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in objects]
    return some_of(names, _NAMED_AT_MOST)


def _scope(jobs_namespace: str | None) -> str:
    return f"namespace {jobs_namespace}" if jobs_namespace else "all namespaces"
