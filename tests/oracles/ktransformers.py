"""KTransformers' own rule code as an oracle: fetched by name, never committed.

The sdist of 0.2.1.post1 and transformers 4.51.3 go into ~/.cache/autoplace/oracles; torch is the
main environment's. 0.3 and 0.3.2 are on no registry: their sources are taken from a git clone of
kvcache-ai/ktransformers where AUTOPLACE_KTRANSFORMERS names one. One process serves all questions
of a test session (ktransformers_server.py).
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CACHE = Path.home() / ".cache" / "autoplace" / "oracles" / "ktransformers-0.2.1.post1"
SERVER = Path(__file__).with_name("ktransformers_server.py")
SDIST = "ktransformers==0.2.1.post1"
CLONE = "AUTOPLACE_KTRANSFORMERS"
ENGINES = {
    "0.2.1.post1": "ktransformers-0.2.1",
    "0.3": "ktransformers-0.3",
    "0.3.2": "ktransformers-0.3.2",
}
"""Versions of the code → the engine whose rule files they run."""
SITE = (
    "transformers==4.51.3",
    "tokenizers==0.21.4",
    "huggingface-hub==0.36.0",
    "requests",
    "charset-normalizer",
    "fire",
    "termcolor",
)


class OracleUnavailableError(Exception):
    """The packages could not be fetched: a test skips with this reason."""


class OracleError(Exception):
    """KTransformers' own code raised: the message is its exception."""


class KTransformers:
    """A running server. Every question is one line there and one line back."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def _ask(self, **question: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the oracle process ended"
        reply = json.loads(line)
        if "error" in reply:
            raise OracleError(reply["error"])
        return reply["answer"]

    def tree(self, family: str) -> Mapping[str, list[str]]:
        """Module path → import paths of its class and that class's bases."""
        return self._ask(do="tree", family=family)  # type: ignore[no-any-return]

    def assign(self, family: str, rules: str) -> Mapping[str, Mapping[str, Any]]:
        """What `gen_optimize_config` says: module path → class, key, kwargs."""
        return self._ask(do="assign", family=family, rules=rules)  # type: ignore[no-any-return]

    def inject(self, family: str, rules: str) -> Mapping[str, Mapping[str, Any]]:
        """What `inject` makes of the model: `config` as above and `injected` by module path."""
        return self._ask(do="inject", family=family, rules=rules)  # type: ignore[no-any-return]


def prepare() -> Path:
    """Fetch what the oracle needs into the cache, whole or not at all.

    Raises `OracleUnavailableError`.
    """
    if not CACHE.exists():
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
            whole = Path(folder) / "whole"
            _pip("install", "--no-deps", "--target", str(whole / "site"), *SITE)
            _fetch_sdist(whole / "sdist")
            with suppress(OSError):  # another process was first
                whole.rename(CACHE)
    return CACHE


def sources(version: str) -> Path:
    """The folder with the package `ktransformers`. Raises `OracleUnavailableError`."""
    cache = prepare()
    if version in SDIST:
        return cache / "sdist"
    folder = CACHE.with_name(f"ktransformers-{version}")
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=CACHE.parent) as draft:
            _from_clone(version, Path(draft) / "whole")
            with suppress(OSError):  # another process was first
                (Path(draft) / "whole").rename(folder)
    return folder


def _from_clone(version: str, target: Path) -> None:
    clone = os.environ.get(CLONE)
    if clone is None:
        raise OracleUnavailableError(
            f"KTransformers {version} is on no registry; {CLONE} may name a clone of its repository"
        )
    command = ["git", "-C", clone, "archive", f"v{version}", "ktransformers"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise OracleUnavailableError(f"{clone} has no tag v{version}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(target, filter="data")


def _fetch_sdist(target: Path) -> None:
    """`pip download` unpacks the sdist, then fails on its metadata, which want a CUDA tool chain.

    `--no-clean` keeps what it unpacked; nothing of it is built.
    """
    with tempfile.TemporaryDirectory() as folder:
        _pip(
            *("download", "--no-clean", "--no-deps", "--no-binary", ":all:"),
            *("--no-build-isolation", "--dest", folder, SDIST),
            folder=folder,
            may_fail=True,
        )
        found = sorted(Path(folder).glob("pip-*/ktransformers_*/ktransformers/optimize"))
        if not found:
            raise OracleUnavailableError(f"{SDIST} could not be fetched from PyPI")
        shutil.copytree(found[0].parent, target / "ktransformers")


def _pip(*arguments: str, folder: str | None = None, may_fail: bool = False) -> None:
    environment = {**os.environ, **({"TMPDIR": folder} if folder else {})}
    command = [sys.executable, "-m", "pip", "--quiet", "--retries", "1", "--timeout", "20"]
    done = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0 and not may_fail:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise OracleUnavailableError(f"pip {arguments[0]} failed: {lines[-1]}")


@contextmanager
def running(version: str = "0.2.1.post1") -> Iterator[KTransformers]:
    """The oracle, with a home folder of its own, since KTransformers writes into it.

    `-P`: this folder's `ktransformers.py` must not hide the package.
    """
    package = sources(version)
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "HOME": home,
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(CACHE / "site"), str(package)]),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        process = subprocess.Popen(
            [sys.executable, "-P", str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise OracleUnavailableError("KTransformers' code does not import here")
            yield KTransformers(process)
            process.stdin.close()
