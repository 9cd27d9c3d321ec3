"""Whole trainings by groups that are killed, stopped, cut off and scaled, in thousands of orders.

The invariants, as failures name them:

(a) a committed step is committed once, with one set of contributors and one state, in all groups that have it;
(b) no group goes back behind a step that it or a living group with the state has;
(c) a death costs the others no committed step;
(d) the ranks of one group go through the same, and all groups that meet do the same;
(e) groups that are late are named, and none that is seen to wait; one process alone names them;
(f) once all disturbances are over, all groups train together again, and training ends;
(g) where no group has the state, one is taken over: that of the newest checkpoint, if there is any.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.played.schedule import Schedule, play_seeds
from tests.replicas.waits import PATIENCE_SECONDS
from tests.replicas.world import Settings, World

pytestmark = pytest.mark.played

LONGEST_SECONDS = 5_000.0
"""Time within which a training ends after its last disturbance: groups that were left out often pause for 600 s."""
MOST_ACTS = 60_000


def settings_of(chance: Schedule) -> Settings:
    random = chance.random
    groups = random.choice((1, 2, 2, 3, 3, 4))
    return Settings(
        groups=groups,
        size=random.choice((1, 1, 2)),
        minimum=random.randint(1, groups),
        total=random.choice((None, 4, 9)),
        sync_every=random.choice((None, None, 3)),
        saves=random.choice((False, True)),
        lives=random.choice((False, True)),
    )


def disturb(world: World) -> None:
    """Let something go wrong, or a few things at once."""
    random, agents = world.random, [*world.agents.values()]
    running = [each for each in world.processes() if not each.is_done]
    if not running:
        return
    process = random.choice(running)
    match random.choice(
        ("kill", "kill", "kill two", "stand still", "stand still", "hang", "cut", "watch", "store", "scale")
    ):
        case "kill":
            process.agent.kill(process.rank, with_pod=world.schedule.chance(0.3))
        case "kill two":
            for agent in random.sample(agents, min(2, len(agents))):
                agent.kill(random.randrange(world.settings.size), with_pod=world.schedule.chance(0.3))
        case "stand still":
            process.still_until = world.schedule.now + random.choice((1.0, 9.0, 18.0, 40.0))
        case "hang":
            process.hangs_seconds = random.choice((5.0, 12.0, 60.0))
        case "cut" if process.exchange is not None:
            process.exchange.cut()
        case "watch":
            process.agent.watch_from = world.schedule.now + random.choice((1.0, 5.0, 30.0))
        case "store":
            world.store_seconds = random.choice((0.02, 1.0, 4.0))
        case "scale":
            world.scale(random.randint(world.settings.minimum, world.settings.groups))


def calm(world: World) -> None:
    world.is_calm, world.store_seconds = True, 0.02
    world.scale(world.settings.groups)


def all_train(world: World) -> bool:
    """Whether all groups train together, with the job's state."""
    wanted = [agent for agent in world.agents.values() if agent.is_wanted]
    members = {(agent.index, agent.round) for agent in wanted if agent.is_formed}
    together = len(members) == len(wanted) and world.members[world.published.version] == members
    trains = all(each.at.member.trained and each.at.quorum is not None for each in world.processes())
    versions = {each.meeting.version for each in world.processes()} if together and trains else set()
    return versions == {world.published.version}


def play(seed: int, settings: Settings | None = None) -> list[str]:
    world = World(seed, settings or settings_of(Schedule(seed)))
    random = world.random
    latest = random.choice((150, 400, 900))
    moments = sorted(random.randrange(30, latest) for _ in range(random.choice((0, 1, 2, 2, 3, 5))))
    last_at = 0.0
    for acts in range(MOST_ACTS):
        while moments and moments[0] <= acts:
            del moments[0]
            disturb(world)
            last_at = world.schedule.now
        if not moments and not world.is_calm:
            calm(world)
        if (
            world.is_calm
            and world.ends_at is None
            and world.settings.total is None
            and acts % 8 == 0
            and all_train(world)
        ):
            world.ends_at = max(each.at.applied for each in world.processes()) + 2
        if world.wrong or (acts % 8 == 0 and world.is_over()):
            break
        if (
            not world.schedule.step() and not world.is_over()
        ) or world.schedule.now > last_at + LONGEST_SECONDS:
            states = [
                (each.name, each.at.quorum and each.at.quorum.version, each.at.applied)
                for each in world.processes()
            ]
            world.fail(f"(f) training does not end: {world.published} {states}")
            break
    return world.wrong


def test_a_group_that_began_with_others_who_are_gone_takes_over_the_state_of_a_later_beginning() -> None:
    assert play(31_473, replace(settings_of(Schedule(31_473)), lives=False)) == []


def test_a_checkpoint_of_a_last_round_that_was_shorter_is_newer_than_one_of_the_round_before() -> None:
    assert play(519_248, replace(settings_of(Schedule(519_248)), lives=False)) == []


def test_groups_train_as_one_through_all_that_goes_wrong() -> None:
    play_seeds(play, 250)


def test_groups_train_as_one_where_processes_live_on() -> None:
    def living(seed: int) -> list[str]:
        settings = replace(settings_of(Schedule(seed)), size=2 + seed % 2, saves=True, lives=True)
        return play(seed, settings)

    play_seeds(living, 150)


def test_a_group_that_hangs_is_named_and_left_out_and_comes_back() -> None:
    world = World(1, Settings(3, size=2))
    schedule = world.schedule
    schedule.run(lambda: all_train(world) and min(each.at.applied for each in world.processes()) > 4)
    world.agents[1].processes[-1].hangs_seconds = 100.0
    begun = schedule.now
    schedule.run(lambda: len(world.published.groups) == 2)
    assert [each.index for each in world.published.late] == [1]
    assert PATIENCE_SECONDS < schedule.now - begun < PATIENCE_SECONDS + 2.0
    schedule.run(lambda: all_train(world))
    assert schedule.now - begun > 100.0 and not world.published.late
    assert not world.wrong


def kill_after_a_commit(seed: int, groups: int) -> bool:
    """Kill the first process that has made a step; return whether no other had made it."""
    world = World(seed, Settings(groups))
    schedule, processes = world.schedule, world.processes()
    schedule.run(lambda: all_train(world) and min(each.at.applied for each in processes) > 3)
    schedule.run(lambda: len({each.at.applied for each in processes}) == 2)
    first = max(processes, key=lambda each: each.at.applied)
    made, others = first.trained, [each for each in processes if each is not first]
    assert made is not None
    first.agent.kill(0)
    is_alone = all(each.at.applied < made.steps for each in others)
    schedule.run(lambda: min(each.at.applied for each in others) >= made.steps)
    assert world.line[made.steps][0] == made.value
    assert not world.wrong
    return is_alone


@pytest.mark.parametrize("groups", [2, 3])
def test_a_step_that_a_process_made_just_before_its_death_is_the_same_step_of_the_others(groups: int) -> None:
    """It may have saved what came of it: no step has two states."""
    assert sum(kill_after_a_commit(seed, groups) for seed in range(40)) > 4
