"""Imports go one way, third-party doors stay shut, and light commands stay light."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "autoplace"
ORDER = (
    "errors", "units", "workload", "native", "native_decode", "weights", "architectures",
    "catalog", "hardware", "placement", "rules", "export", "predict", "models", "operators",
    "engine", "bench", "tuner", "config", "commands", "__main__",
)  # fmt: skip
DOORS = {
    "hydra": ("config", "commands", "__main__"),
    "omegaconf": ("config", "commands", "__main__"),
    "optuna": ("tuner",),
    "ray": ("tuner.ray_runner",),
    "gguf": ("weights",),
    "torch": ("models", "operators", "engine", "bench", "tuner"),
}
SOURCES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if not {"conf", "kernels"} & set(path.relative_to(PACKAGE).parts)
)


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rank(module: str) -> int:
    return ORDER.index(module.split(".")[0])


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_a_module_imports_only_from_packages_before_its_own(path: Path) -> None:
    name = module_name(path)
    if not name:
        return
    inside = {
        module.removeprefix("autoplace.")
        for module in imported_modules(path)
        if module.startswith("autoplace.") and module.split(".")[1] in ORDER
    }
    later = sorted(module for module in inside if rank(module) > rank(name))
    assert not later, f"{name} imports {later}"


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_a_library_is_imported_only_behind_its_door(path: Path) -> None:
    name = module_name(path)
    for module in imported_modules(path):
        allowed = DOORS.get(module.split(".")[0])
        assert allowed is None or any(
            name == door or name.startswith(f"{door}.") for door in allowed
        ), f"{name} imports {module}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "hardware=2xa6000", "model=deepseek-v2", "output=json"],
        ["inspect", "--help"],
        ["check", "--help"],
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_light_commands_import_neither_torch_nor_ray_nor_optuna(arguments: list[str]) -> None:
    program = (
        "import sys, json\n"
        "from autoplace.__main__ import main\n"
        "code = main(sys.argv[1:])\n"
        "print(json.dumps([code, sorted({m.split('.')[0] for m in sys.modules})]), "
        "file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    code, loaded = json.loads(done.stderr.splitlines()[-1])
    assert code in (0, 1)
    assert not {"torch", "ray", "optuna"} & set(loaded)
