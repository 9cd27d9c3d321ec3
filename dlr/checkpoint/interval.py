"""Interval of checkpoints to memory for every="auto".

Young and Daly: with failures every M seconds and a stall of c seconds per checkpoint, an interval of √(2·c·M)
seconds costs the least time (Daly, FGCS 22, 2006); dlr saves every ten seconds if that is shorter. If
copies go to another Pod, the interval is at least the time of a copy.

All ranks have to save the same steps. Rank 0 decides, at a few steps that all ranks can compute, and
publishes the interval in the store of the process group's rendezvous. Intervals are powers of two, and each
is at most twice and at least half the previous one. So a rank that missed a decision still has every other
save in common with the others.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from statistics import median

from torch.distributed import HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from dlr.checkpoint.surroundings import logger

LARGEST_SHARE = 0.005
"""Share of the training time that stalls may take."""
DEFAULT_FAILURES_PER_HOUR = 1 / 24
"""Failure rate of a job without a history: one a day."""
FIRST = 8
"""Steps between two saves before the first measurements."""
LONGEST_SECONDS = 10.0
"""Longest time between two saves, if that keeps within the share: the assumed failure rate may be too low."""
LARGEST = 2**20
_INTERVAL = re.compile(rb"[1-9]\d{0,6}")
_FIRST_DECISION = 2 * FIRST
_LAST_SPACING = 1024
_REMEMBERED = 32
STORE_TIMEOUT = timedelta(seconds=10)


def best_interval(
    stall_seconds: float, step_seconds: float, failures_per_hour: float, copy_seconds: float = 0.0
) -> int:
    """Return the steps between two checkpoints, a power of two.

    Args:
        stall_seconds: cost of a checkpoint.
        step_seconds: duration of a step without a checkpoint.
        failures_per_hour: failure rate of the whole job.
        copy_seconds: duration of a copy to another Pod.
    """
    step_seconds = max(step_seconds, 1e-9)
    at_most_share = stall_seconds / (LARGEST_SHARE * step_seconds)
    daly = math.sqrt(2 * stall_seconds * 3600 / max(failures_per_hour, 1e-9)) / step_seconds
    longest = LONGEST_SECONDS / step_seconds
    wanted = min(max(at_most_share, min(daly, longest), copy_seconds / step_seconds, 1.0), float(LARGEST))
    return int(2 ** math.ceil(math.log2(wanted)))


def next_interval(present: int, best: int) -> int:
    """Return the best interval, or the closest to it that one decision may reach."""
    return min(max(best, present // 2, 1), present * 2, LARGEST)


def decides(count: int) -> bool:
    """Whether rank 0 decides the interval after that many steps of the processes."""
    return count >= _FIRST_DECISION and (count & (count - 1) == 0 or count % _LAST_SPACING == 0)


def applies_from(count: int) -> int:
    """Return the step of the processes from which a decision after `count` steps applies.

    The delay lets all ranks read the decision without waiting for rank 0.
    """
    return count + min(count, _LAST_SPACING) // 2


def is_due(step: int, last: int, interval: int) -> bool:
    """Whether a multiple of the interval lies after step `last`, up to and including `step`.

    Step numbers may have gaps, as in a script that counts batches and makes a step of every fourth; so no
    step number may be a multiple itself.
    """
    return step // interval > max(last, 0) // interval


class SaveSchedule:
    """Schedule of the saves to memory, the same on all ranks.

    Args:
        find_board: returns the store in which rank 0 publishes its decisions; None keeps the interval until
            the next decision.
        copy_seconds: returns the duration of a copy to another Pod; called before each decision.
    """

    def __init__(
        self,
        rank: int,
        find_board: Callable[[], Store | None],
        failures_per_hour: float | None,
        copy_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.interval = FIRST
        self._rank = rank
        self._find_board = find_board
        self._board = find_board()
        self._failures_per_hour = (
            DEFAULT_FAILURES_PER_HOUR if failures_per_hour is None else failures_per_hour
        )
        self._copy_seconds = copy_seconds
        self._count = 0
        self._decision: int | None = None
        """Step count of the newest decision that this rank has not applied."""
        self._decided = FIRST
        """Interval of that decision, on rank 0."""
        self._missed = 0
        """Number of consecutive decisions that this rank has not read."""
        self._plain: deque[float] = deque(maxlen=_REMEMBERED)
        self._after_save: deque[float] = deque(maxlen=_REMEMBERED)
        self._stalls: deque[float] = deque(maxlen=_REMEMBERED)

    def is_due(self, step: int, last: int) -> bool:
        """Whether to save after this step; `last` is the previous one. Called once per step, on all ranks."""
        count, self._count = self._count, self._count + 1
        if decides(count):
            self._expect(count)
        if self._decision is not None and count >= applies_from(self._decision):
            self._take_over(self._decision)
        return is_due(step, last, self.interval)

    def trained(self, seconds: float, saved_before: bool) -> None:
        """Record the duration of a step.

        Args:
            seconds: duration, divided by the distance to the previous step number.
            saved_before: whether copies from a GPU may have run at the same time.
        """
        (self._after_save if saved_before else self._plain).append(seconds)

    def stalled(self, seconds: float) -> None:
        """Record the duration of a save."""
        self._stalls.append(seconds)

    def best(self) -> int:
        """Return the best interval by this process's measurements; the present one if there are too few."""
        if not (self._plain and self._stalls):
            return self.interval
        step_seconds = median(self._plain)
        beside = max(0.0, median(self._after_save) - step_seconds) if self._after_save else 0.0
        stall_seconds = median(self._stalls) + beside
        return best_interval(stall_seconds, step_seconds, self._failures_per_hour, self._copy_seconds())

    def _expect(self, count: int) -> None:
        """Make a decision as rank 0, or expect one; all ranks apply it later, at the same step."""
        if self._decision is not None:
            self._miss("without an answer from rank 0")
        if self._board is None:
            self._board = self._find_board()
        self._decision = count
        if self._rank != 0:
            return
        self._decided = next_interval(self.interval, self.best())
        try:
            if self._board is not None:
                self._board.set(_key(count), str(self._decided))
                return
        except RuntimeError as error:  # torch's DistStoreError is one
            self._miss(str(error))
        self._decision = None  # the others cannot read it, so it does not apply here either

    def _take_over(self, decision: int) -> None:
        """Apply the decision if it can be read; otherwise try again at the next step."""
        if self._rank == 0:
            self.interval, self._decision = self._decided, None
            return
        if self._board is None:
            return
        try:
            if self._board.check([_key(decision)]):
                self.interval = self._read(self._board.get(_key(decision)))
                self._decision, self._missed = None, 0
        except (RuntimeError, ValueError) as error:
            self._miss(str(error))

    def _miss(self, reason: str) -> None:
        """Keep the interval; the next decision is read over a new connection."""
        logger.warning('every="auto" stays at %s steps for now: %s', self.interval, reason)
        self._board, self._decision = None, None
        self._missed += 1

    def _read(self, text: bytes) -> int:
        """Read a decision of rank 0; anyone who reaches the store may have written it.

        Raises:
            ValueError: rank 0 cannot have made such a decision.
        """
        if not _INTERVAL.fullmatch(text):
            raise ValueError(f"{text[:20]!r} is no interval")
        interval, reach = int(text), 2 ** (self._missed + 1)
        is_power = interval & (interval - 1) == 0 and interval <= LARGEST
        if not is_power or not self.interval <= interval * reach <= self.interval * reach**2:
            raise ValueError(f"{interval} cannot follow {self.interval}")
        return interval


def _key(decision: int) -> str:
    return f"interval/{decision}"


def find_board(world_size: int, environ: Mapping[str, str] = os.environ) -> Store | None:
    """Return the store that torchrun or dlr gives the processes of a start; None if there is none."""
    if world_size == 1:
        return HashStore()
    try:
        host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False)
        # A restart of torchrun's processes uses the same store.
        return PrefixStore(f"dlr-checkpoint/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    except (KeyError, ValueError, RuntimeError) as error:
        logger.warning('every="auto" stays as it is for now: there is no store to agree through (%s)', error)
        return None
