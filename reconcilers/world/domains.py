"""Worlds by domain: whole units, and the rank order of members. Pure.

The nodes of a domain share a switch (`reconcilers/observed/domains.py`). A unit is `nodeUnit` workers of one
domain; without domains, all workers are in one. Except for sorting, all takes time linear in workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from crds.ranges import MAX_RANKED_CHARACTERS, ranked_to_text
from crds.rendezvous import Rendezvous
from reconcilers.world.participants import Participant


def in_whole_units(participants: Sequence[Participant], unit: int) -> int:
    """Return the number of workers in whole units; without domains all, since sizes are whole anyway."""
    domains = Counter(p.domain for p in participants) if unit > 1 else Counter[str]()
    if len(domains) < 2:
        return len(participants)
    return sum(count // unit * unit for count in domains.values())


def chosen(
    joinable: Sequence[Participant], size: int, unit: int, before: Collection[int], lost: Mapping[str, int]
) -> list[Participant]:
    """Return the members of a world of `size` workers.

    Units with most members of the previous world come first, so that workers that train stay; then units that
    fill a gap in their own domain; then units of the lowest indices.

    Args:
        before: members of the previous world.
        lost: number of these that are missing, by domain.
    """
    units = list[tuple[int, bool, int, list[Participant]]]()
    for domain, participants in _by_domain(joinable).items():
        ready = sorted(participants, key=lambda p: (p.index not in before, p.index))
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

    Domains keep their order: a domain has the place of the first of its members that stay, or, if none stays,
    of the first of its slots. So two members that stay keep their order. If the text would be too long, since
    the slots are scattered over very many domains, all are in the order of their indices.
    """
    by_index = sorted(members, key=lambda p: p.index)
    domains = _by_domain(by_index)
    if len(domains) < 2:
        return by_index
    places = {index: rank for rank, index in enumerate(before.members)}
    incarnations = before.incarnation_by_index()

    def place(participants: Sequence[Participant]) -> tuple[bool, int]:
        earlier = [p for p in participants if p.index in places]
        stay = [p for p in earlier if incarnations[p.index] == p.incarnation]
        ranks = [places[p.index] for p in stay or earlier]
        return not ranks, min(ranks, default=participants[0].index)

    ordered = [p for participants in sorted(domains.values(), key=place) for p in participants]
    text = ranked_to_text([p.index for p in ordered])
    return ordered if len(text) <= MAX_RANKED_CHARACTERS else by_index


def lost_by_domain(participants: Sequence[Participant], before: Collection[int]) -> Mapping[str, int]:
    """Return the number of missing members of the previous world, by domain."""
    return Counter(p.domain for p in participants if p.index in before and not p.joinable)


def _by_domain(participants: Sequence[Participant]) -> dict[str, list[Participant]]:
    found = dict[str, list[Participant]]()
    for p in participants:
        found.setdefault(p.domain, []).append(p)
    return found
