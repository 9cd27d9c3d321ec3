"""What is shipped, as it is shipped: the wheel's files, and the zip that is injected into training images."""

import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from importlib.util import source_hash
from pathlib import Path
from types import CodeType

import pytest

from crds.names import HAS_BEGUN
from dlr.bundle import agent as agent_bundle
from dlr.bundle.relocate import PARTS

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]

FRAMEWORKS = {f"dlr/integrations/{name}.py" for name in ("accelerate", "lightning", "transformers")}
"""What can be imported only where that framework is installed."""

REFUSING = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"{{name}} is not shipped under this name", name=name)

sys.meta_path.insert(0, Refuse())
sys.path[:0] = {first!r}
{then}
"""


def run_refusing(first: Path, refused: set[str], then: str) -> str:
    """Run code that finds our modules in `first` alone; what it prints."""
    source = REFUSING.format(refused=refused, first=[str(first)], then=then)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=600, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("agent")
    agent_bundle.build(found)
    return found


def test_every_module_of_the_wheel_imports_where_our_top_level_names_do_not_exist(tmp_path: Path) -> None:
    files = runpy.run_path(str(ROOT / "setup.py"))["wheel_files"](ROOT)
    assert {path.partition("/")[0] for path in files} == {"dlr"}
    for place, content in files.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(content)
    modules = [
        path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in files
        if path.endswith(".py") and not path.endswith("__main__.py") and path not in FRAMEWORKS
    ]
    assert set(files) > FRAMEWORKS and len(modules) > 300
    then = f"for name in {modules!r}: importlib.import_module(name)\nprint('all')"
    assert run_refusing(tmp_path, set(PARTS) | {"e2e", "tests"}, then).endswith("all\n")


def test_the_zip_needs_torch_alone(folder: Path) -> None:
    """Neither our own top-level names nor what the agent vendors are looked for outside of it."""
    with zipfile.ZipFile(folder / agent_bundle.AGENT_ZIP) as archive:
        names = archive.namelist()
    first = {name.partition("/")[0].partition("-")[0] for name in names}
    assert first == {"dlr", "dlr_training", "__main__.py", "__main__.pyc"}
    assert set(names) > FRAMEWORKS
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in names
        if name.startswith(("dlr/_internal/agent", "dlr/_internal/healthcheck", "dlr/_internal/pynvml"))
        and name.endswith(".py")
        and not name.endswith("__main__.py")
    ]
    refused = set(PARTS) | set(agent_bundle.VENDORED) | {"pydantic", "kubernetes", "yaml", "typer", "aiohttp"}
    then = f"for name in {modules!r}: importlib.import_module(name)\nprint('all')"
    assert run_refusing(folder / agent_bundle.AGENT_ZIP, refused, then).endswith("all\n")


def test_equal_sources_make_equal_bytes(folder: Path, tmp_path: Path) -> None:
    agent_bundle.build(tmp_path)
    assert (tmp_path / agent_bundle.AGENT_ZIP).read_bytes() == (folder / agent_bundle.AGENT_ZIP).read_bytes()


def test_bytecode_is_used_only_for_the_source_beside_it(folder: Path, tmp_path: Path) -> None:
    """Who reads a module in the zip reads what runs."""
    changed = tmp_path / agent_bundle.AGENT_ZIP
    with zipfile.ZipFile(folder / agent_bundle.AGENT_ZIP) as built, zipfile.ZipFile(changed, "w") as archive:
        for name in built.namelist():
            content = built.read(name)
            if name.endswith(".pyc"):
                assert content[4:8] == b"\3\0\0\0", "a hash of the source, which is checked (PEP 552)"
                assert content[8:16] == source_hash(built.read(name.removesuffix("c")))
            archive.writestr(name, content + b"\nCHANGED = True\n" if name.endswith("/terms.py") else content)
    then = "from dlr._internal.agent import terms\nprint(terms.__file__, terms.CHANGED)"
    assert run_refusing(changed, set(PARTS), then).endswith("/agent/terms.py True\n")


def test_module_that_marshal_s_format_has_no_words_for_is_there_as_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a Python 3.14 takes the constant slices of some."""

    class Marshal:
        @staticmethod
        def dumps(code: CodeType, version: int) -> bytes:
            if code.co_filename.endswith("/terms.py"):
                raise ValueError("unmarshallable object")
            return b"bytecode"

    monkeypatch.setattr(agent_bundle, "marshal", Marshal)
    agent_bundle.build(tmp_path)
    with zipfile.ZipFile(tmp_path / agent_bundle.AGENT_ZIP) as archive:
        missing = {f"{name}c" for name in archive.namelist() if name.endswith(".py")} - {*archive.namelist()}
    assert missing == {"dlr/_internal/agent/terms.pyc"}


def test_torchrun_finds_our_rendezvous_in_the_zip(folder: Path) -> None:
    then = (
        "from importlib.metadata import distributions\n"
        f"found = [d for d in distributions(path=[{str(folder / agent_bundle.AGENT_ZIP)!r}])]\n"
        "print([e.value for d in found for e in d.entry_points if e.group == 'torchrun.handlers'])\n"
        "print(next(iter(found[0].entry_points)).load().__module__)\n"
    )
    printed = run_refusing(folder / agent_bundle.AGENT_ZIP, set(PARTS), then)
    assert printed == "['dlr.torchrun:get_handler']\ndlr.torchrun\n"


def launch(
    folder: Path, launcher: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / "bin" / launcher, *arguments],
        env={"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("damage", "tools"),
    [
        ("a changed byte", "sha256sum"),
        ("it is missing", "python"),
    ],
)
def test_a_launcher_refuses_a_zip_that_it_was_not_built_with(
    folder: Path, tmp_path: Path, damage: str, tools: str
) -> None:
    shutil.copytree(folder, tmp_path / "dlr")
    archive = tmp_path / "dlr" / agent_bundle.AGENT_ZIP
    content = archive.read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    damaged = changed if damage == "a changed byte" else None
    path = "/usr/bin:/bin"
    if tools == "python":  # an image that has no coreutils
        path = str(tmp_path / "bin")
        Path(path).mkdir()
    python = {"PATH": path, "DLR_PYTHON": sys.executable}
    as_built = launch(tmp_path / "dlr", "dlr", "job", **python)
    assert "`dlr job` is not one of them" in as_built.stderr
    if damaged is None:
        archive.unlink()
    else:
        archive.write_bytes(damaged)
    done = launch(tmp_path / "dlr", "dlr", "job", **python)
    found = hashlib.sha256(damaged).hexdigest() if damaged is not None else "unknown"
    expected = hashlib.sha256(content).hexdigest()
    assert (done.returncode, done.stderr.count("\n")) == (69, 1)
    assert f"{archive} is not the file that this launcher was built with" in done.stderr
    assert f"its SHA-256 is {found} and not {expected};" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "begun"),
    [(("torchrun", "x.py"), "torchrun"), (("dlr", "exec", "x"), "dlr"), (("dlr", "check-worker"), "")],
)
def test_a_launcher_marks_the_termination_message_as_its_first_act(
    folder: Path, tmp_path: Path, arguments: tuple[str, ...], begun: str
) -> None:
    """Without a Python, so nothing of the agent has run: the mark stays, with the reason behind it."""
    message = tmp_path / "termination-log"
    message.touch()
    done = launch(folder, *arguments, PATH=str(tmp_path), DLR_TERMINATION_LOG=str(message))
    assert done.returncode == 127
    expected = f"dlr: {begun} has begun, and its agent has not reported yet\n{done.stderr}" if begun else ""
    assert message.read_text() == expected


def test_a_python_that_is_too_old_is_named_behind_the_mark(tmp_path: Path) -> None:
    message, main = tmp_path / "termination-log", tmp_path / "main.py"
    mark = f"dlr: torchrun {HAS_BEGUN}\n"
    main.write_text("import sys\nsys.version_info = (3, 9, 2)\n" + agent_bundle.contents()["__main__.py"])
    for made in (False, True):
        if made:
            message.write_text(mark)
        done = subprocess.run(
            [sys.executable, main],
            env={"DLR_TERMINATION_LOG": str(message)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 69
        assert done.stderr.startswith(f"dlr: Python 3.10 or newer is needed, and {sys.executable} is 3.9;")
    assert message.read_text() == f"{mark}{done.stderr}"


def test_torchrun_of_another_rendezvous_is_the_images_and_its_mark_is_taken_back(
    folder: Path, tmp_path: Path
) -> None:
    """--standalone trains in a job's Pod as it does anywhere, without our agent."""
    script, message = tmp_path / "train.py", tmp_path / "termination-log"
    words = f"os.environ['WORLD_SIZE'], sys.argv[1:], open({str(message)!r}).read()"
    script.write_text(f"import os, sys; print({words})")
    message.write_text("words of the user's\n")
    job = {"DLR_JOB_NAME": "digits", "DLR_TERMINATION_LOG": str(message)}
    told = {**job, "PET_NNODES": "2:2", "PET_RDZV_BACKEND": "dlr"}
    done = launch(folder, "torchrun", "--standalone", str(script), "--rdzv-backend=x", **told)
    assert done.stdout == "1 ['--rdzv-backend=x'] words of the user's\n\n", done.stderr
    assert launch(folder, "torchrun", "--help", **job).returncode == 0
    assert message.read_text() == "words of the user's\n"


def test_a_python_that_is_not_beside_its_torchrun_is_the_one_on_path(folder: Path) -> None:
    """As where pip runs as root on Debian: /usr/local/bin/torchrun is /usr/bin/python3's."""
    done = launch(folder, "dlr", "run", "train.py", DLR_PYTHON="/usr/local/bin/no-python3")
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("dlr: there is no /usr/local/bin/no-python3, so /")
    assert last.startswith("dlr run: DLR_JOB_NAME is not set")


def test_a_python_without_torch_is_told_so(folder: Path) -> None:
    bare = Path(sys.base_prefix) / "bin" / "python3"
    done = launch(folder, "torchrun", "train.py", DLR_PYTHON=str(bare), DLR_JOB_NAME="digits")
    assert done.returncode == 69
    assert "has no torch" in done.stderr


def test_the_images_own_torchrun_goes_on_as_the_agent(folder: Path) -> None:
    """A command may find it before our launcher; only for our rendezvous, and only where we are injected."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"],
        env={
            "PATH": os.defpath,
            "PYTHONPATH": str(folder / agent_bundle.AGENT_ZIP),
            "PET_RDZV_BACKEND": "dlr",
            "DLR_JOB_NAME": "digits",
        },
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("dlr run: DLR_NAMESPACE is not set")


def test_the_zip_has_dlrovers_sharding_client_under_dlrovers_name(folder: Path) -> None:
    archive = str(folder / agent_bundle.AGENT_ZIP)
    then = (
        "from dlr.pod import SDK\n"
        "sys.path[:0] = SDK.dlrover_clients\n"
        "from dlrover.python.elastic_agent.sharding.client import ShardingClient\n"
        "print(ShardingClient.__module__)"
    )
    assert run_refusing(Path(archive), set(PARTS), then) == "dlr.shards.dlrover\n"
