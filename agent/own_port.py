"""What an agent offers to the agents of other workers: a listener on its Pod's address, and a store."""

from __future__ import annotations

import contextlib

from agent.connection.listener import Listener
from agent.connection.store_server import StoreServer
from agent.environment import Environment, InvalidEnvironmentError
from crds.names import ENV_POD_IP


def listen(me: Environment, cleanup: contextlib.ExitStack) -> tuple[Listener, StoreServer]:
    """Listen for the agents of other workers, and serve the store that they meet through.

    Raises:
        InvalidEnvironmentError: the Pod does not have the address that its environment names.
    """
    try:
        listener = Listener(me.pod_ip, me.key)
    except OSError as error:
        raise InvalidEnvironmentError(f"cannot listen on {ENV_POD_IP}={me.pod_ip}: {error}") from error
    cleanup.callback(listener.close)
    store = StoreServer(listener)
    cleanup.callback(store.close)
    return listener, store
