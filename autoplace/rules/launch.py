"""How a rule file is launched: the command line of its engine, for the header."""

from autoplace.catalog.engines import engine
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings

SERVER = (
    "python ktransformers/server/main.py --model_path MODEL --gguf_path GGUF "
    "--optimize_config_path FILE --backend_type balance_serve --cache_lens {context} "
    "--chunk_size 256 --max_batch_size 4 --cpu_infer {threads}"
)
"""KTransformers' doc/en/balance-serve.md (0.2.4 to 0.3.2); the cache is for all requests."""


def server_line(settings: RunSettings, *, context_tokens: int) -> str:
    """For families that KTransformers runs in its server only; its cache has pages of 256."""
    context = -(-context_tokens // 256) * 256
    return SERVER.format(context=context, threads=settings.num_threads)


def launch_lines(placement: Placement, settings: RunSettings) -> tuple[str, ...]:
    """Command lines with `FILE`, `MODEL` and `GGUF` for what only the user's machine knows.

    In KTransformers any expert on a GPU needs CUDA graphs off for the whole model, since it waits
    for the host inside the graph; the same goes for a KLinearTorch on the host.
    """
    profile = engine(placement.engine)
    graph = f" --use_cuda_graph {not _waits_for_host(placement)}"
    line = profile.launch.format(
        rules="FILE", model="MODEL", gguf="GGUF", threads=settings.num_threads, graph=graph
    )
    return (line,)


def _waits_for_host(placement: Placement) -> bool:
    for layer in placement.layers:
        if layer.experts is not None and layer.experts.device != "cpu":
            return True
    return placement.lm_head.device == "cpu" and placement.lm_head.operator == "KLinearTorch"
