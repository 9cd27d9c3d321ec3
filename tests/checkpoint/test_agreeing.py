"""Savers of several ranks beside each other, one of which may give up at any moment: all come to the same end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dlr.checkpoint import sharing, storage
from dlr.checkpoint.files import RemoteFiles
from dlr.checkpoint.plan import Piece, divide, encode_plan, own_name
from dlr.checkpoint.sharing import PART, PLAN, SaveError, Savers
from tests.checkpoint.test_sharing import digests_of, plan
from tests.played.schedule import Schedule, play_seeds

pytestmark = pytest.mark.played

STEP, ATTEMPT = 7, "a"
FOLDER = storage.try_folder(STEP, ATTEMPT)


class NotYet(Exception):
    """A saver would look again later."""


class Rank:
    """A rank's saver, an act at a time; one that has to wait is tried again later."""

    def __init__(
        self, schedule: Schedule, files: RemoteFiles, rank: int, pieces: list[Piece], ranks: int
    ) -> None:
        self.schedule, self.files, self.rank, self.pieces = schedule, files, rank, pieces
        self.savers: Any = Savers(files, FOLDER, rank, ranks)
        self.acts = [self.announce, self.share, self.write, self.complete]
        self.written: list[Piece] = []
        self.end = ""
        """How it ended: "saved", or why not."""
        schedule.soon(f"{rank}", self.act)

    def act(self) -> None:
        if self.end:
            return
        try:
            self.acts[0]()
        except NotYet:
            self.schedule.after(self.schedule.random.uniform(0.1, 1.0), f"{self.rank} again", self.act)
        except (SaveError, FileNotFoundError) as error:
            self.give_up(str(error))
        else:
            del self.acts[0]
            if self.acts:
                self.schedule.soon(f"{self.rank}", self.act)
            else:
                self.end = "saved"

    def give_up(self, reason: str) -> None:
        if not self.end:
            self.end = reason
            storage.give_up(self.files, STEP, ATTEMPT, self.rank, reason)

    def announce(self) -> None:
        self.savers.tell(PLAN, encode_plan(self.pieces))

    def share(self) -> None:
        if self.rank:
            self.written = self.savers.follow(self.pieces, digests_of(self.rank))
        else:
            self.written = self.savers.lead(digests_of(0)).of_ranks[0].of(self.pieces, 0)

    def write(self) -> None:
        self.savers.tell(PART, b"a part")

    def complete(self) -> None:
        if self.rank:
            self.savers.wait_for_rank_0()
        else:
            list(self.savers.collect(PART))
            self.files.write(f"{FOLDER}/{storage.MANIFEST}", b"")
            self.savers.remove_notes()


def expected(plans: list[list[Piece]], own_values: bool) -> set[tuple[str, tuple[int, ...]]]:
    """Name and place of each piece that is to be in storage."""
    every = {(piece.name, piece.global_offset) for of_rank in divide(plans) for piece in of_rank}
    if own_values and len(plans) > 1:
        every -= {("experts", (0,))}
        every |= {(own_name("experts", rank), (0,)) for rank in range(len(plans))}
    return every


@pytest.mark.parametrize("own_values", [False, True])
def test_all_savers_come_to_the_same_end(monkeypatch: pytest.MonkeyPatch, own_values: bool) -> None:
    def play(seed: int) -> Iterator[str]:
        schedule, files = Schedule(seed), RemoteFiles(f"memory://agreeing/{own_values}/{seed}")

        def sleep(_: float) -> None:
            raise NotYet

        monkeypatch.setattr(sharing, "time", SimpleNamespace(monotonic=lambda: schedule.now, sleep=sleep))
        count = schedule.random.randint(1, 5)
        plans = [plan(rank, count, own_values) for rank in range(count)]
        ranks = [Rank(schedule, files, rank, plans[rank], count) for rank in range(count)]
        quitter = schedule.random.choice(ranks) if schedule.chance(0.5) else None
        if quitter is not None:
            leave: Callable[[], None] = lambda: quitter.give_up("its disk is full")  # noqa: E731
            schedule.after(schedule.random.uniform(0.0, 3.0), "gives up", leave)
        schedule.run()
        if unended := [rank.rank for rank in ranks if not rank.end]:
            yield f"{unended} wait for ever"
        is_saved = files.exists(f"{FOLDER}/{storage.MANIFEST}")
        for rank in ranks:
            if (rank.end == "saved") != is_saved and rank is not quitter:
                yield f"rank {rank.rank}: {rank.end}, and the checkpoint is {'there' * is_saved or 'not there'}"
            if rank.end != "saved" and "its disk is full" not in rank.end:
                yield f"rank {rank.rank} says {rank.end}"
        places = [(piece.name, piece.global_offset) for rank in ranks for piece in rank.written]
        if is_saved and (len(places) != len(set(places)) or set(places) != expected(plans, own_values)):
            yield f"{places} are in storage"

    play_seeds(play, 150)
