"""Worlds by domain: who makes up whole units, and in which order members have their ranks. Pure.

The nodes of a domain share a switch (`reconcilers/observed/domains.py`). A unit is `nodeUnit` workers of one
domain; where there are no domains, all workers are in one. All takes time linear in workers, but for sorting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from crds.ranges import MAX_RANKED_CHARACTERS, ranked_to_text
from crds.rendezvous import Rendezvous
from reconcilers.world.participants import Participant


def in_whole_units(people: Sequence[Participant], unit: int) -> int:
    """Return how many of these workers are in whole units; without domains all: sizes are whole anyway."""
    domains = Counter(p.domain for p in people) if unit > 1 else Counter[str]()
    if len(domains) < 2:
        return len(people)
    return sum(count // unit * unit for count in domains.values())


def chosen(
    joinable: Sequence[Participant], size: int, unit: int, before: Collection[int], lost: Mapping[str, int]
) -> list[Participant]:
    """Return the members of a world of `size` workers.

    Units with most members of the world before come first, so that nobody who trains gives way; then those
    that fill a gap in their own domain; then those of the lowest indices.

    Args:
        before: members of the world before.
        lost: how many of these each domain lacks.
    """
    units = list[tuple[int, bool, int, list[Participant]]]()
    for domain, people in _by_domain(joinable).items():
        ready = sorted(people, key=lambda p: (p.index not in before, p.index))
        gaps = lost.get(domain, 0)
        for at in range(0, len(ready) - unit + 1, unit):
            these = ready[at : at + unit]
            present = sum(p.index in before for p in these)
            units.append((-present, gaps <= 0, min(p.index for p in these), these))
            gaps -= unit - present
    units.sort(key=lambda each: each[:3])
    return [p for *_, these in units[: size // unit] for p in these]


def in_rank_order(members: Sequence[Participant], before: Rendezvous) -> list[Participant]:
    """Return the members by domain, and by index within a domain.

    Domains keep the order that they had: a domain comes where the first of its members that stay was, or, if
    none stays, where the first of its slots was. So two members that stay keep their order. Where that takes
    too long a text, since the slots are scattered over very many domains, all are by index.
    """
    by_index = sorted(members, key=lambda p: p.index)
    domains = _by_domain(by_index)
    if len(domains) < 2:
        return by_index
    places = {index: rank for rank, index in enumerate(before.members)}
    incarnations = before.incarnation_by_index()

    def place(people: Sequence[Participant]) -> tuple[bool, int]:
        known = [p for p in people if p.index in places]
        stay = [p for p in known if incarnations[p.index] == p.incarnation]
        ranks = [places[p.index] for p in stay or known]
        return not ranks, min(ranks, default=people[0].index)

    ordered = [p for people in sorted(domains.values(), key=place) for p in people]
    text = ranked_to_text([p.index for p in ordered])
    return ordered if len(text) <= MAX_RANKED_CHARACTERS else by_index


def lost_by_domain(people: Sequence[Participant], before: Collection[int]) -> Mapping[str, int]:
    """Return how many members of the world before each domain lacks."""
    return Counter(p.domain for p in people if p.index in before and not p.joinable)


def _by_domain(people: Sequence[Participant]) -> dict[str, list[Participant]]:
    found = dict[str, list[Participant]]()
    for p in people:
        found.setdefault(p.domain, []).append(p)
    return found
