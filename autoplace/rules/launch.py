"""How a rule file is launched: the command line of its engine, for the header."""

from autoplace.catalog.engines import engine
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings


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
