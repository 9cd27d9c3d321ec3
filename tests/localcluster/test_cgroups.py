"""Memory limits: where the kernel's groups can be made, and what a container over its limit comes to."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.kubelet.cgroups import Hierarchy, MemoryGroups, Version, find_hierarchy, open_groups
from localcluster.kubelet.confinement import Confinement
from localcluster.kubelet.container import ContainerRuntime, ContainerSpec, Exit, Isolation
from tests.localcluster.running import best_isolation

WAIT_SECONDS = 300.0
MIB = 2**20
V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_GROUPS = "4:memory:/session/7\n1:cpu:/\n0::/\n"
V2_MOUNTS = "29 22 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def test_the_memory_controller_of_version_1_is_preferred_where_both_are_mounted() -> None:
    root = Path("/sys/fs/cgroup/memory")
    found = find_hierarchy(V1_MOUNTS, V1_GROUPS)
    assert found == Hierarchy(Version.V1, root, root / "session/7")
    assert list(found.parents()) == [root / "session/7"]


def test_groups_of_version_2_may_be_below_any_group_above_us() -> None:
    root = Path("/sys/fs/cgroup")
    found = find_hierarchy(V2_MOUNTS, "0::/user.slice/session-1.scope\n")
    assert found == Hierarchy(Version.V2, root, root / "user.slice/session-1.scope")
    assert list(found.parents()) == [root / "user.slice/session-1.scope", root / "user.slice", root]


@pytest.mark.parametrize(
    ("mounts", "groups"), [("", ""), (V1_MOUNTS, "1:cpu:/\n"), (V2_MOUNTS, "0::/../outside\n")]
)
def test_without_a_controller_or_a_group_of_ours_there_is_nothing_to_be_had(mounts: str, groups: str) -> None:
    assert find_hierarchy(mounts, groups) is None


def test_that_limits_are_not_kept_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mountinfo").write_text("")
    (tmp_path / "cgroup").write_text("")
    monkeypatch.setattr("localcluster.kubelet.cgroups.PROC", tmp_path)
    assert open_groups(tmp_path) is None
    assert [record.getMessage() for record in caplog.records] == [
        "limits.memory of containers are not kept here: no memory controller is mounted"
    ]


def test_a_group_of_version_2_is_killed_as_a_whole_and_may_not_swap(tmp_path: Path) -> None:
    """On a folder that stands for a hierarchy: this is what is written, not what a kernel makes of it."""
    group = MemoryGroups(tmp_path, Hierarchy(Version.V2, tmp_path, tmp_path)).make(64 * MIB)
    written = {file.name: file.read_text() for file in group.folder.iterdir()}
    assert written == {"memory.max": str(64 * MIB), "memory.swap.max": "0", "memory.oom.group": "1"}
    (group.folder / "cgroup.procs").touch()
    confinement = Confinement(group.described())
    assert not confinement.ran_out()
    (group.folder / "memory.events").write_text(
        "low 0\nhigh 0\nmax 41\noom 2\noom_kill 2\noom_group_kill 1\n"
    )
    assert confinement.ran_out()


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[MemoryGroups]:
    opened = open_groups(tmp_path)
    if opened is None:
        pytest.skip("this host lets us make no memory cgroups")
    yield opened
    opened.close()


def isolations() -> list[Isolation]:
    return sorted({best_isolation(), Isolation.NONE}, key=lambda isolation: isolation.value)


@pytest.fixture(params=isolations(), ids=lambda isolation: isolation.value)
def runtime(request: pytest.FixtureRequest, groups: MemoryGroups) -> ContainerRuntime:
    return ContainerRuntime(request.param, groups)


HOG = f"{sys.executable} -c 'block = bytes(1) * (200 << 20)'"


def limited(tmp_path: Path, script: str, limit_bytes: int = 64 * MIB) -> ContainerSpec:
    return ContainerSpec(
        title="test/pod/main",
        argv=["sh", "-c", script],
        env={"PATH": os.environ["PATH"]},
        cwd="/",
        log=str(tmp_path / "0.log"),
        memory_limit_bytes=limit_bytes,
    )


async def run(runtime: ContainerRuntime, spec: ContainerSpec) -> tuple[Exit, Path]:
    """How it ended, and where its group was."""
    process = runtime.create()
    await process.start(spec)
    assert process.memory_group is not None
    async with asyncio.timeout(WAIT_SECONDS):
        exit_ = await process.exited
        await process.gone
    return exit_, process.memory_group.folder


async def until_removed(folder: Path) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while os.access(folder, os.F_OK):  # noqa: ASYNC110 - cgroups send no events
            await asyncio.sleep(0.01)


@pytest.mark.real
async def test_a_container_over_its_limit_is_killed_by_the_kernel(
    runtime: ContainerRuntime, tmp_path: Path
) -> None:
    exit_, folder = await run(runtime, limited(tmp_path, f"exec {HOG}"))
    assert (exit_.code, exit_.out_of_memory) == (137, True)
    await until_removed(folder)


@pytest.mark.real
async def test_what_a_killed_cluster_left_is_removed_by_the_next(
    groups: MemoryGroups, tmp_path: Path
) -> None:
    left = groups.make(MIB).folder
    again = open_groups(tmp_path)
    assert again is not None
    assert not left.exists()
