"""A life drawn with characters, for a terminal or a pipe. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from crds.elasticworker import ExitClass
from crds.job_status import JobState
from dlr.job.failures import FOLLOWED, WAITED
from dlr.job.timeline.episodes import UP, WAITING, Span
from dlr.job.timeline.life import Lane, Life, clock_of, title
from dlr.job.timeline.outages import verdict
from dlr.job.wording import duration, plain

SIGNS = {
    JobState.TRAINING.value: "█",
    JobState.RECOVERING.value: "▒",
    JobState.FORMING.value: "░",
    JobState.CHECKING.value: "c",
    JobState.PENDING.value: "·",
    JobState.SUSPENDED.value: "s",
    JobState.DOWN.value: "_",
    WAITING: "-",
    UP: "=",
}
"""In the order in which the legend names them."""
UNKNOWN, NOTHING = "?", " "
FAILURE, FOLLOWER, NEW_POD = "X", "x", "^"
FEWEST_CELLS = 20
MOST_CELLS = 160
GAP = 2


def text_of(life: Life, width: int) -> list[str]:
    """Return lines of that many characters, or as many as the shortest bars take; failures are not cut."""
    labels = ["job", *(plain(lane.title) for lane in life.lanes)]
    margin = max(map(len, labels)) + GAP
    cells = min(MOST_CELLS, max(FEWEST_CELLS, width - margin))
    rows = [_bar(life.states, life, cells), *(_lane(lane, life, cells) for lane in life.lanes)]
    return [
        title(life),
        verdict(life),
        "",
        *(f"{label:{margin}}{row}".rstrip() for label, row in zip(labels, rows, strict=True)),
        *(" " * margin + line for line in _clocks(life, cells)),
        "",
        _legend(rows),
        *_failures(life),
    ]


def _bar(spans: Sequence[Span], life: Life, cells: int) -> str:
    return "".join(_sign(spans, *_stretch(number, life, cells)) for number in range(cells))


def _stretch(number: int, life: Life, cells: int) -> tuple[float, float]:
    """Return begin and end of a cell."""
    step = (life.seconds - life.known_since) / cells
    return life.known_since + number * step, life.known_since + (number + 1) * step


def _sign(spans: Sequence[Span], begin: float, end: float) -> str:
    """Return the sign of what lasted longest in this cell; even the shortest stop is shown."""
    shares = {
        span.state: min(span.end, end) - max(span.begin, begin)
        for span in spans
        if span.begin < end and span.end > begin
    }
    if not shares:
        return NOTHING
    others = {state: seconds for state, seconds in shares.items() if state != JobState.TRAINING}
    longest = max(others or shares, key=lambda state: shares[state])
    return SIGNS.get(longest, UNKNOWN)


def _lane(lane: Lane, life: Life, cells: int) -> str:
    signs = list(_bar(lane.spans, life, cells))
    marks = [(start.at, NEW_POD) for start in lane.starts]
    marks += [(failure.at, FOLLOWER) for failure in lane.failures if failure.follows]
    marks += [(failure.at, FAILURE) for failure in lane.failures if not failure.follows]
    for at, mark in marks:  # the most important last, over the others
        if at >= life.known_since:
            share = (at - life.known_since) / (life.seconds - life.known_since)
            signs[min(cells - 1, int(share * cells))] = mark
    return "".join(signs)


def _clocks(life: Life, cells: int) -> list[str]:
    """Return the scale's two ends: since submission, and by the clock."""
    ends = (life.known_since, life.seconds)
    return [
        first + last.rjust(cells - len(first))
        for first, last in (
            (duration(ends[0]), duration(ends[1])),
            (clock_of(life, ends[0]), clock_of(life, ends[1]) + " UTC"),
        )
    ]


def _legend(rows: Sequence[str]) -> str:
    seen = set("".join(rows))
    names = {sign: state for state, sign in SIGNS.items()}
    names |= {FAILURE: "failure", FOLLOWER: "died of a peer's failure, or waited for it", NEW_POD: "new Pod"}
    return "  ".join(f"{sign} {name}" for sign, name in names.items() if sign in seen)


def _failures(life: Life) -> list[str]:
    """Each failure with its message; one that only followed from another's has none of its own."""
    found = sorted(
        (failure.at, failure.follows, lane.title, failure.what, plain(failure.text))
        for lane in life.lanes
        for failure in lane.failures
    )
    lines = [
        f"{clock_of(life, at)}  {duration(at):>6}  {who}  {_words(what, text, follows)}"
        for at, follows, who, what, text in found
    ]
    return ["", *lines] if lines else []


def _words(what: str, text: str, follows: bool) -> str:
    if follows:
        return WAITED if what == ExitClass.HANG else FOLLOWED
    return f"{what}: {text}" if text else what
