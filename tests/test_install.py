"""What is installed works from any folder: conf/ and kernels/ travel inside the package."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def unpacked_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def run(arguments: list[str], *, site: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of the unpacked wheel, in a folder of its own."""
    program = (
        "import sys, autoplace\n"
        f"assert autoplace.__file__.startswith({str(site)!r}), autoplace.__file__\n"
        "from autoplace.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_wheel_plans_from_any_folder(unpacked_wheel: Path, tmp_path: Path) -> None:
    arguments = ["plan", "hardware=2xa6000", "model=deepseek-v2", "output=json"]
    done = run(arguments, site=unpacked_wheel, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema_version"] >= 1
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_carries_every_kernel_source(unpacked_wheel: Path) -> None:
    sources = {
        path.relative_to(ROOT)
        for path in (ROOT / "kernels").rglob("*.*pp")
        if "__pycache__" not in path.parts
    }
    carried = {
        path.relative_to(unpacked_wheel / "autoplace")
        for path in (unpacked_wheel / "autoplace" / "kernels").rglob("*.*pp")
    }
    assert sources
    assert carried == sources


def test_a_wheel_carries_no_build_leftovers(unpacked_wheel: Path) -> None:
    leftovers = [path for path in unpacked_wheel.rglob("*") if path.suffix in {".pyc", ".so", ".o"}]
    assert leftovers == []
