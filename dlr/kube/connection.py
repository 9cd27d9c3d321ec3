"""Choice of the cluster for a command: as in `controller.kubeconfig`, or the embedded one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from controller import kubeconfig
from controller.connection import Connection as Connection
from controller.errors import ConfigError
from controller.kubeconfig import KubeconfigSource
from controller.kubeconfig import contexts_of as contexts_of
from dlr.kube.errors import UsageError
from dlr.kube.waiting import waiting_for
from localcluster.paths import Home, unexpanded_root

ADVICE = "; is the cluster up? (`dlr up` starts a local one.)"


def find_source(
    explicit: str | None,
    environment: Mapping[str, str] = os.environ,
    user_file: Path | None = None,
    embedded_file: Path | None = None,
) -> KubeconfigSource:
    """Return the first of `--kubeconfig`, `$KUBECONFIG`, the Pod's service account, `~/.kube/config`, and the
    embedded cluster's kubeconfig.

    Raises:
        ConfigError: there is none.
    """
    user_file = user_file or kubeconfig.default_kubeconfig()
    if (found := kubeconfig.find_source(explicit, environment, user_file)) is not None:
        return found
    if embedded_file is None:
        try:
            embedded_file = Home.default().kubeconfig
        except RuntimeError:  # the user has no home, and no embedded cluster in it
            embedded_file = Home(unexpanded_root()).kubeconfig
    if embedded_file.is_file():
        return KubeconfigSource("the embedded cluster's kubeconfig", (embedded_file,))
    raise ConfigError(
        "No cluster is configured: start a local one with `dlr up`, or name a kubeconfig with --kubeconfig "
        f"or $KUBECONFIG (neither {user_file} nor {embedded_file} exists)."
    )


def connect(
    explicit: str | None,
    context: str | None,
    namespace: str | None,
    environment: Mapping[str, str] = os.environ,
) -> Connection:
    """Return the connection to the cluster that the user means.

    Args:
        explicit: kubeconfig named by an option.
        context: context of the kubeconfig; None for its current one.
        namespace: replaces the context's.

    Raises:
        ConfigError: there is no cluster, or the kubeconfig cannot be used.
        UsageError: there is no such context.
    """
    source = find_source(explicit, environment)
    try:
        with waiting_for(f"the login of {source}"):
            found = kubeconfig.load_connection(source, context, environment, ADVICE)
    except kubeconfig.UnknownContext as error:
        raise UsageError(str(error)) from error
    return replace(found, namespace=namespace or found.namespace)
