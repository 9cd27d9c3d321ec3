"""How often a checkpoint goes to memory: every="auto".

Young and Daly: with failures every M seconds and a stall of c seconds a checkpoint, the least time is lost
with one every √(2·c·M) seconds (Daly, FGCS 22, 2006), or every ten, if that is more often. Where another
Pod is to have a copy, they are no closer than that takes.

All ranks have to save the same steps. Rank 0 decides, at a few steps that all know, and tells the others
through the store of the process group's rendezvous. Intervals are powers of two, and one is at most twice the
one before, or half of it. So a rank that could not be told still has every other step in common with the
others.
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
"""Of the time of training, for the stalls."""
DEFAULT_FAILURES_PER_HOUR = 1 / 24
"""Where nothing is known of the job: one a day."""
FIRST = 8
"""Steps between two saves, before anything was measured."""
LONGEST_SECONDS = 10.0
"""Between two saves, where that keeps within the share: what is assumed of failures may be wrong, and who
sees one sees what it cost."""
LARGEST = 2**20
_INTERVAL = re.compile(rb"[1-9]\d{0,6}")
_FIRST_DECISION = 2 * FIRST
_LAST_SPACING = 1024
_REMEMBERED = 32
STORE_TIMEOUT = timedelta(seconds=10)


def best_interval(
    stall_seconds: float, step_seconds: float, failures_per_hour: float, copy_seconds: float = 0.0
) -> int:
    """Steps between two checkpoints, a power of two.

    Args:
        stall_seconds: that a checkpoint costs.
        step_seconds: that a step takes without one.
        failures_per_hour: of the whole job.
        copy_seconds: that a copy to another Pod takes.
    """
    step_seconds = max(step_seconds, 1e-9)
    at_most_share = stall_seconds / (LARGEST_SHARE * step_seconds)
    daly = math.sqrt(2 * stall_seconds * 3600 / max(failures_per_hour, 1e-9)) / step_seconds
    longest = LONGEST_SECONDS / step_seconds
    wanted = min(max(at_most_share, min(daly, longest), copy_seconds / step_seconds, 1.0), float(LARGEST))
    return int(2 ** math.ceil(math.log2(wanted)))


def next_interval(present: int, best: int) -> int:
    """The one that is best, or as far towards it as one decision goes."""
    return min(max(best, present // 2, 1), present * 2, LARGEST)


def decides(count: int) -> bool:
    """Whether the interval is decided anew after that many steps of the processes."""
    return count >= _FIRST_DECISION and (count & (count - 1) == 0 or count % _LAST_SPACING == 0)


def applies_from(count: int) -> int:
    """The step of the processes from which on a decision after `count` steps counts.

    That is so much later that all ranks can have read it by then, and none has to wait for rank 0.
    """
    return count + min(count, _LAST_SPACING) // 2


def is_due(step: int, last: int, interval: int) -> bool:
    """Whether a multiple of the interval comes after step `last`, and not after `step`.

    Steps may be numbered with gaps, as where a script counts batches and makes a step of every fourth: no
    number may be such a multiple itself.
    """
    return step // interval > max(last, 0) // interval


class SaveSchedule:
    """Says which steps are saved: the same on all ranks.

    Args:
        find_board: finds that through which rank 0 tells what it decides; None leaves the interval as it is
            until the next decision.
        copy_seconds: what a copy to another Pod takes, asked before each decision.
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
        """After how many steps the newest decision was made that this rank has not taken over."""
        self._decided = FIRST
        """What that is, as rank 0 knows."""
        self._missed = 0
        """Decisions in a row that this rank has not read."""
        self._plain: deque[float] = deque(maxlen=_REMEMBERED)
        self._after_save: deque[float] = deque(maxlen=_REMEMBERED)
        self._stalls: deque[float] = deque(maxlen=_REMEMBERED)

    def is_due(self, step: int, last: int) -> bool:
        """Whether to save after this step, `last` being the one before. Called once a step, on all ranks."""
        count, self._count = self._count, self._count + 1
        if decides(count):
            self._expect(count)
        if self._decision is not None and count >= applies_from(self._decision):
            self._take_over(self._decision)
        return is_due(step, last, self.interval)

    def trained(self, seconds: float, saved_before: bool) -> None:
        """Note how long a step took.

        Args:
            seconds: of those with a gap before their number, by as much less.
            saved_before: the copies of a GPU's memory may have run beside it.
        """
        (self._after_save if saved_before else self._plain).append(seconds)

    def stalled(self, seconds: float) -> None:
        """Note how long a save took."""
        self._stalls.append(seconds)

    def best(self) -> int:
        """What the figures of this process speak for; the present interval where there are too few."""
        if not (self._plain and self._stalls):
            return self.interval
        step_seconds = median(self._plain)
        beside = max(0.0, median(self._after_save) - step_seconds) if self._after_save else 0.0
        stall_seconds = median(self._stalls) + beside
        return best_interval(stall_seconds, step_seconds, self._failures_per_hour, self._copy_seconds())

    def _expect(self, count: int) -> None:
        """Make a decision as rank 0, or expect one that all take over later at the same step."""
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
        self._decision = None  # what the others cannot read does not count here either

    def _take_over(self, decision: int) -> None:
        """Take over what was decided, if it is there; else it is looked for at the next step."""
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
        """Go on without a decision; the next one counts, read over a new connection."""
        logger.warning('every="auto" stays at %s steps for now: %s', self.interval, reason)
        self._board, self._decision = None, None
        self._missed += 1

    def _read(self, text: bytes) -> int:
        """Read what rank 0 has decided; whoever reaches the store may have written it instead.

        Raises:
            ValueError: rank 0 cannot have decided that.
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
    """What the processes of a start share: the store that torchrun and dlr name; None if there is none."""
    if world_size == 1:
        return HashStore()
    try:
        host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False)
        # A restart of torchrun's processes finds the same store.
        return PrefixStore(f"dlr-checkpoint/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    except (KeyError, ValueError, RuntimeError) as error:
        logger.warning('every="auto" stays as it is for now: there is no store to agree through (%s)', error)
        return None
