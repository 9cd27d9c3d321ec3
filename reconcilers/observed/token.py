"""The token of a Pod's account, for the container in which the agent runs and no other."""

from __future__ import annotations

from controller.resources import Object

VOLUME = "dlr-token"
FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
LIFE_SECONDS = 3607
"""What Kubernetes asks for: the kubelet renews the token in time."""


def give_token_to_agent(spec: Object) -> None:
    """Mount the token in the first container, and have Kubernetes mount it in none.

    A template stays as it is if it says itself whether tokens are mounted, or mounts something there. The
    volume is the one that Kubernetes would add for all containers (a bound service account token):
    https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/

    Args:
        spec: of the Pod; it is changed.
    """
    container = spec["containers"][0]
    mounts = container.get("volumeMounts") or []
    is_mounted = any(str(mount.get("mountPath")).rstrip("/") == FOLDER for mount in mounts)
    if is_mounted or spec.get("automountServiceAccountToken") is not None:
        return
    spec["automountServiceAccountToken"] = False
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": LIFE_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    volume = {"name": VOLUME, "projected": {"sources": sources}}
    mount = {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    container["volumeMounts"] = [*mounts, mount]
