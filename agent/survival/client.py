"""A training process's connection to its agent, by which it lives on from one round into the next."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.facts.place import Place
from agent.survival import messages
from agent.survival.messages import Enters, Leave, Left, Lost, NextRound, Unable
from crds.progress_record import ENV_ROUND

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0


class AgentGoneError(ConnectionError):
    """The agent has closed the line: no round will follow."""


class RoundOverError(Exception):
    """The round is over, so that the wait of this process has to end."""


@dataclass(frozen=True)
class HandedRound:
    """The next round, as the agent hands it over."""

    round: int
    variables: Mapping[str, str]
    """Variables of the round."""
    outputs: Mapping[int, int]
    """This process's descriptors for its stdout (1) and stderr (2)."""


class RoundLine:
    """The connection, which a thread reads.

    Args:
        leave: called by that thread when a round is over.

    Raises:
        OSError: the agent cannot be reached.
    """

    def __init__(self, path: str, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(CONNECT_SECONDS)
        self._socket.connect(path)
        self._socket.settimeout(None)
        self._handed: queue.SimpleQueue[HandedRound | None] = queue.SimpleQueue()
        self._over = 0
        """Newest round that is over."""
        self._news = threading.Event()
        """Set at each end of a round."""
        self._thread = threading.Thread(target=self._read, name="dlr-rounds", daemon=True)

    def enter(self, bound_to: Place | None) -> None:
        """Inform the agent that this process can live on from now on, and begin to listen.

        Args:
            bound_to: the only place that it can go on in; None for any.
        """
        self.send(Enters(bound_to))
        self._thread.start()

    def send(self, message: Enters | Left | Lost | Unable) -> None:
        """Send a message; `next_round` notices if the agent is gone."""
        with contextlib.suppress(OSError):
            self._socket.sendall(messages.encode(message))

    def next_round(self) -> HandedRound:
        """Wait for the next round.

        Raises:
            AgentGoneError: there will be none.
        """
        found = self._handed.get()
        if found is None:
            self._handed.put(None)
            raise AgentGoneError("the agent is gone, and no round will follow")
        return found

    def is_over(self, round_: int) -> bool:
        """Whether that round is over."""
        return self._over >= round_

    def rest(self, seconds: float) -> None:
        """Wait for this time, or until a round is over."""
        self._news.wait(seconds)
        self._news.clear()

    def _read(self) -> None:
        try:
            while (received := socket.recv_fds(self._socket, messages.MAX_FROM_AGENT, 2))[0]:
                self._take(messages.read_from_agent(received[0]), received[1])
        except OSError:
            pass  # the agent is gone
        except Exception:  # including torch's, by `leave`
            logger.exception("this process cannot live on any more")
        finally:
            self._close()

    def _close(self) -> None:
        """Inform the main thread that no round will come, and the agent that none can be handed over."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._handed.put(None)
        with contextlib.suppress(Exception):
            self._end(sys.maxsize)

    def _take(self, message: messages.FromAgent, descriptors: list[int]) -> None:
        match message:
            case Leave(round_):
                self._end(round_)
            case NextRound(env, redirects):
                outputs = dict(zip(redirects, descriptors, strict=True))
                self._handed.put(HandedRound(int(env[ENV_ROUND]), env, outputs))

    def _end(self, round_: int) -> None:
        self._over = max(self._over, round_)
        self._news.set()
        self._leave()
