"""Finds what else acts on ElasticJobs in the cluster: DLRover's operator, other installations of dlr.

Group, kinds and names of two CRDs are DLRover's and ours alike, so a cluster can have one definition of them,
and each job should have one controller. All functions here are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.wording import some_of
from dlr.commands.install.kinds import container_of, is_ours
from dlr.job.report import FINISHED
from dlr.kube.api import JSON

DLROVER_LABEL = "control-plane=controller-manager"
"""Of DLRover's operator, as of most that were made with kubebuilder."""
_HELM_RELEASE = "meta.helm.sh/release-name"
"""Annotation of what Helm makes: https://helm.sh/docs/chart_best_practices/labels/."""
_NAMESPACE_OPTION = "--namespace="
_NAMED_AT_MOST = 5


def foreign_crds(crds: Iterable[JSON]) -> list[str]:
    """The names of those CRDs that are not ours: ours are in the category `dlr`, DLRover's in none."""
    return [crd["metadata"]["name"] for crd in crds if not is_ours(crd)]


def defines_jobs(foreign: Iterable[str]) -> bool:
    """Whether the cluster's ElasticJobs are another operator's."""
    return any(name.startswith("elasticjobs.") for name in foreign)


def dlrover_operators(deployments: Iterable[JSON]) -> list[JSON]:
    """The Deployments of DLRover's operator that are to have Pods."""
    return [each for each in deployments if _is_dlrover(each) and each["spec"].get("replicas", 1) > 0]


def _is_dlrover(deployment: JSON) -> bool:
    containers = deployment["spec"]["template"]["spec"].get("containers") or []
    images = [container.get("image", "") for container in containers]
    return "dlrover" in deployment["metadata"]["name"] or any("elasticjob-controller" in i for i in images)


def unfinished(objects: Iterable[JSON], *, suspended: bool = True) -> list[JSON]:
    """The jobs or checks that have not ended; those that are suspended only if wanted."""
    return [
        each
        for each in objects
        if (each.get("status") or {}).get("phase") not in FINISHED
        and (suspended or not each["spec"].get("suspend"))
    ]


def scope_of(deployment: JSON) -> str | None:
    """The namespace that a controller of ours looks after; None: all of them."""
    words = container_of(deployment).get("args") or ()
    named = [word.removeprefix(_NAMESPACE_OPTION) for word in words if word.startswith(_NAMESPACE_OPTION)]
    return named[-1] if named else None  # the last one counts


def why_not_beside(controllers: Iterable[JSON], namespace: str, jobs_namespace: str | None) -> str | None:
    """Why no controller may be put into `namespace` for jobs of `jobs_namespace`; None if it may.

    controllers: the Deployments of dlr's controllers, of all namespaces
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
    """Why the installation in `namespace` for jobs of `jobs_namespace` is not the one that there is.

    Objects of the whole cluster are named by the jobs' namespace alone, so they may be another controller's;
    and what all namespaces have for workers is another's where only others are left.
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
    """Return the name of the Helm release that a Deployment is part of; None if Helm did not make it."""
    name: str | None = (deployment["metadata"].get("annotations") or {}).get(_HELM_RELEASE)
    return name


def uninstall_command(deployment: JSON) -> str:
    """Return the command that takes a controller away, with all that was installed with it."""
    namespace, jobs_namespace = deployment["metadata"]["namespace"], scope_of(deployment)
    if release := helm_release(deployment):
        return f"helm uninstall {release} -n {namespace}"
    return f"dlr uninstall --namespace {namespace}" + (
        f" --jobs-namespace {jobs_namespace}" if jobs_namespace else ""
    )


def why_not_instead_of_dlrover(
    foreign: Sequence[str], operators: Sequence[JSON], jobs: Iterable[JSON], *, replace_crds: bool
) -> str | None:
    """Why dlr cannot be installed with what there is of DLRover; None if it can.

    foreign: the CRDs of ours that another operator has defined
    operators: DLRover's operators that run
    jobs: the ElasticJobs of the cluster; looked at only where another operator has defined them
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
            "docs/from-dlrover.md tells what becomes of the jobs there, and how to go back."
        )
    left = unfinished(jobs)
    if left:
        return (
            f"Another operator's jobs have not ended: {names_of(left)}. dlr's controller would start them "
            "anew; wait for them, or delete them."
        )
    return None


def how_to_stop(operator: JSON) -> str:
    """Return the command that stops an operator of DLRover's."""
    name, namespace = operator["metadata"]["name"], operator["metadata"]["namespace"]
    return (
        f"DLRover's operator runs ({namespace}/{name}), and would act on the same ElasticJobs as dlr's. "
        f"When its jobs have ended, stop it: kubectl scale deployment {name} -n {namespace} --replicas=0 "
        "(docs/from-dlrover.md tells the rest)."
    )


def names_of(objects: Sequence[JSON]) -> str:
    """Some of their names, and how many more there are."""
    names = [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in objects]
    return some_of(names, _NAMED_AT_MOST)


def _scope(jobs_namespace: str | None) -> str:
    return f"namespace {jobs_namespace}" if jobs_namespace else "all namespaces"
