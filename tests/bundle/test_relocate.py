"""Moving modules below another package changes what they import, and nothing else of them."""

import ast
from pathlib import Path

import pytest

import crds
from dlr.bundle.agent import _PROTOCOL, contents
from dlr.bundle.relocate import PARTS, RelocationError, relocated

MODULES = {"agent", "agent.world", "crds", "crds.names"}


@pytest.mark.parametrize(
    ("source", "moved"),
    [
        ("from agent import world\n", "from dlr._internal.agent import world\n"),
        ("from agent.world import World\n", "from dlr._internal.agent.world import World\n"),
        ("    from agent.world import (\n        World,\n    )\n", None),
        ("import agent\n", "from dlr._internal import agent\n"),
        ("import agent as ours\n", "from dlr._internal import agent as ours\n"),
        ("if True: from crds import names\n", "if True: from dlr._internal.crds import names\n"),
        ("x = 1; import crds\n", "x = 1; from dlr._internal import crds\n"),
        ("run('-m', 'agent.world')\n", "run('-m', 'dlr._internal.agent.world')\n"),
        ("status['agent']\n", "status['agent']\n"),
        ("'agent.nothing'\n", "'agent.nothing'\n"),
        ("from .agent import x\n", "from .agent import x\n"),
        ("from dlr.agent import x\n", "from dlr.agent import x\n"),
        ("from agents import x\n", "from agents import x\n"),
        ("agent.world.x = agent\n", "agent.world.x = agent\n"),
        ("def f():\n    yield from agent\n", "def f():\n    yield from agent\n"),
        ("raise ValueError from agent\n", "raise ValueError from agent\n"),
    ],
)
def test_imports_are_moved_and_nothing_else(source: str, moved: str | None) -> None:
    wanted = source.replace("from agent", "from dlr._internal.agent") if moved is None else moved
    assert relocated(source, {"agent", "crds"}, MODULES) == wanted


def test_an_import_that_binds_the_moved_name_by_itself_is_refused() -> None:
    with pytest.raises(RelocationError, match=r"x\.py:2"):
        relocated("a = 1\nimport agent.world\n", PARTS, MODULES, "x.py")


def test_what_the_shared_modules_import_of_crds_is_shipped_with_them() -> None:
    """Otherwise no injected agent starts."""
    folder = Path(crds.__file__).parent
    for name in _PROTOCOL:
        for node in ast.walk(ast.parse((folder / name).read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("crds"):
                continue
            _, _, module = (node.module or "").partition(".")
            imported = {module} if module else {each.name for each in node.names}
            assert {f"{each}.py" for each in imported} <= {*_PROTOCOL}, f"crds/{name}"


def test_the_zip_has_each_module_of_ours_that_one_in_it_imports() -> None:
    files = {path: source for path, source in contents().items() if path.endswith(".py")}
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in files}
    imports = {
        (node.module, path)
        for path, source in files.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "dlr"
    }
    missing = {(module, path) for module, path in imports if module not in modules}
    assert missing == {("dlr.client", "dlr/__init__.py")}, "which is imported where it is used"
