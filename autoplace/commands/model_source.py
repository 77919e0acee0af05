"""From `model=` to a model: its spec, and a file with its weights where a command needs them.

What only files need is imported by it: `plan` and `check` of a preset are to answer at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autoplace.architectures import (
    file_metadata,
    file_tensors,
    geometry_from_preset,
    spec_from_geometry,
    spec_from_gguf,
)
from autoplace.architectures.geometry import Geometry
from autoplace.architectures.spec import ModelSpec
from autoplace.commands.output import progress_console
from autoplace.config import ModelConfig
from autoplace.errors import AutoplaceError
from autoplace.units import GIB, format_bytes
from autoplace.weights.ggml import TensorInfo
from autoplace.workload import Workload

SYNTHESISED_UNASKED_BYTES = GIB
"""Presets up to this size are written to the cache when a command needs their weights."""
SEED = 0
Report = Callable[[int, int], None]
"""Called with the bytes done and their total."""


def describe_model(model: ModelConfig, workload: Workload | None = None) -> ModelSpec:
    """The spec, from the file's header or the preset's geometry alone; no weights are needed.

    Raises `AutoplaceError` if the workload is longer than the model's context.
    """
    if model.path is not None:
        from autoplace.weights.gguf_file import GGUFFile

        spec = spec_from_gguf(GGUFFile.open(model.path), name=model.name)
    else:
        spec = spec_from_geometry(model.name, preset_geometry(model), quant=preset_quant(model))
    if workload is not None:
        _refuse_beyond_context(spec, workload)
    return spec


def model_file(model: ModelConfig) -> Path:
    """A GGUF with the model's weights. Small presets are synthesised into the cache on first use.

    Raises `AutoplaceError` for a preset too big to write unasked.
    """
    from autoplace.native import cache_dir
    from autoplace.weights.gguf_file import GGUFFile

    if model.path is not None:
        GGUFFile.open(model.path)
        return model.path
    spec = describe_model(model)
    path = cache_dir() / "models" / f"{model.name}-{preset_quant(model)}-{spec.fingerprint}.gguf"
    if path.exists():
        return path
    n_bytes = sum(info.n_bytes for info in preset_tensors(model))
    if n_bytes > SYNTHESISED_UNASKED_BYTES:
        raise AutoplaceError(
            f"model={model.name} has no weights here ({format_bytes(n_bytes)}); give a file as "
            f"model.path=FILE, or write one with `synth model={model.name} out=FILE`"
        )
    _make_folder(path.parent)
    write_preset(model, path, seed=SEED)
    return path


def write_preset(
    model: ModelConfig, path: Path, *, seed: int, sparse: bool = False, num_shards: int = 1
) -> tuple[Path, ...]:
    """Write the preset as a GGUF with random weights, with progress on standard error."""
    from autoplace.weights.synthesize import write_gguf

    geometry, quant = preset_geometry(model), preset_quant(model)
    with written_bytes(f"writing {path.name}") as report:
        return write_gguf(
            path,
            metadata=file_metadata(model.name, geometry, quant),
            tensors=preset_tensors(model),
            seed=seed,
            sparse=sparse,
            num_shards=num_shards,
            progress=report,
        )


def _refuse_beyond_context(spec: ModelSpec, workload: Workload) -> None:
    """Refuse a workload that is longer than what the model was made for."""
    limit = spec.geometry.context_length
    if workload.context_tokens > limit:
        raise AutoplaceError(
            f"workload {workload.name} takes {workload.context_tokens} tokens "
            f"({workload.prompt_tokens} of prompt, {workload.output_tokens} of output), "
            f"but the context of {spec.name} is {limit}"
        )


def preset_geometry(model: ModelConfig) -> Geometry:
    return geometry_from_preset(model.preset)


def preset_quant(model: ModelConfig) -> str:
    return model.quant or str(model.preset["default_quant"])


def preset_tensors(model: ModelConfig) -> tuple[TensorInfo, ...]:
    return file_tensors(preset_geometry(model), quant=preset_quant(model))


@contextmanager
def written_bytes(title: str) -> Iterator[Report]:
    """A bar with rate and time left, where there is a terminal; yields what moves it."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = progress_console()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AutoplaceError(
            f"cannot write the cache folder {folder}: {error.strerror}; "
            "AUTOPLACE_CACHE names another one"
        ) from error
