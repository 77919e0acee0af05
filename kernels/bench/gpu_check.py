"""Everything that needs a GPU to be believed, in one run of under 8 minutes on one GPU.

    python kernels/bench/gpu_check.py [--minutes 8] [--model deepseek-v2-lite] [--layers N]
    python kernels/bench/gpu_check.py --interpret        # no GPU: tiny, by Triton's interpreter

Needs torch, triton, numpy, pyyaml and gguf; a C++ compiler makes CPU experts fast. Stages (--only
A,B names some): this GPU's limits; dequantisation, packing, linears and routed experts against
numpy, torch and the CPU's packer, with their rates; tiny models against the plain twins; a
synthetic model (a temporary folder, 10 GB for V2-Lite) decoding with and without CUDA graphs, its
experts on the CPU, packed and bf16 on the GPU; predicted bytes against the driver's. Each stage is
a process with its own time limit: a crash or a hang costs its own rows only. A table comes last;
the exit code is 1 where anything failed. What there was no time for is named in the table.

`--interpret` cannot show speed, a driver's bytes or CUDA graphs. There everything runs in one
process, and a stand-in on host memory records the pieces of a decode.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
if "--interpret" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported

from autoplace import native  # noqa: E402
from autoplace.kernels.bench.gpu import driver  # noqa: E402
from autoplace.kernels.bench.gpu.rows import FAILED, Row, read_rows, table  # noqa: E402


def parse(arguments: list[str]) -> argparse.Namespace:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--interpret", action="store_true")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", default=",".join(driver.SECONDS))
    parser.add_argument("--model")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--folder", type=Path, help="for the model, instead of a temporary one")
    for hidden in ("--stage", "--rows", "--seconds"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.model = given.model or ("tiny-v3" if given.interpret else "deepseek-v2-lite")
    return given


def chosen(only: str) -> list[str]:
    """Stages in their order; a word stands for all whose name begins with it."""
    words = [word.strip() for word in only.split(",")]
    names = [name for name in driver.SECONDS if any(name.startswith(word) for word in words)]
    if any(name.startswith("decode") for name in names) and "write" not in names:
        names.insert(0, "write")
    return names


def do_here(given: argparse.Namespace, names: list[str], folder: Path, rows: Path) -> None:
    """Stages in this process."""
    from autoplace.kernels.bench.gpu.report import Report
    from autoplace.kernels.bench.gpu.stages import Job, do
    from autoplace.models.backend import kernels

    kernels()  # found in the user's cache; packed weights go to the folder
    os.environ["AUTOPLACE_CACHE"] = str(folder)
    seconds = float(given.seconds or 60 * given.minutes)
    report = Report(rows, given.interpret, seconds)
    for name in names:
        do(Job(report, folder, given.model, given.layers), name)


def do_apart(given: argparse.Namespace, names: list[str], folder: Path) -> list[Row]:
    """Each stage in a process; the model is written meanwhile."""
    deadline = time.monotonic() + 60 * given.minutes - 10
    command = [sys.executable, __file__, "--model", given.model, "--folder", str(folder)]
    command += ["--layers", str(given.layers)] if given.layers else []
    found: list[Row] = []
    writing = None
    try:
        for name in names:
            left = deadline - time.monotonic() - 15
            seconds = min(driver.SECONDS[name], left)
            if seconds < min(20, driver.SECONDS[name]):
                found.append(Row(f"stage {name}", "", f"left out: {max(0, left):.0f} s were left"))
                continue
            if name.startswith("decode") and writing is not None:
                found += writing.wait()
                writing = None
            running = driver.start(command, name, folder, seconds=seconds)
            if name == "write":
                writing = running
            else:
                found += running.wait()
                print(f"{name} done", file=sys.stderr, flush=True)
    finally:
        if writing is not None:
            writing.stop()
    return found


def check(given: argparse.Namespace, folder: Path) -> list[Row]:
    names = chosen(given.only)
    if not given.interpret:
        return do_apart(given, names, folder)
    do_here(given, names, folder, folder / "rows.jsonl")
    return read_rows(folder / "rows.jsonl")


def place_name(given: argparse.Namespace) -> str:
    import torch

    where = "Triton's interpreter" if given.interpret else torch.cuda.get_device_name(0)
    return f"{where}, torch {torch.__version__}"


def main(arguments: list[str]) -> int:
    given = parse(arguments)
    if given.stage:
        do_here(given, [given.stage], given.folder, Path(given.rows))
        return int(any(row.verdict == FAILED for row in read_rows(Path(given.rows))))
    if not given.interpret:
        import torch

        if not torch.cuda.is_available():
            told = "expected a CUDA GPU but torch sees none; --interpret runs without"
            print(told, file=sys.stderr)
            return 2
    native.build()
    if given.folder is not None:
        rows = check(given, given.folder)
    else:
        with tempfile.TemporaryDirectory(prefix="autoplace-gpu-check-") as folder:
            rows = check(given, Path(folder))
    print(f"\n{place_name(given)}\n{table(rows)}")
    return int(not rows or any(row.verdict == FAILED for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
