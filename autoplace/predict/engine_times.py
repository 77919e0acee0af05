"""What an engine adds to bytes over bandwidth: launches, CUDA graphs, how it prefills.

Source: prediction.md section 2 (the starting values) and KTransformers' rule that any expert on a
GPU turns CUDA graphs off for the whole model.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class EngineTimes:
    """Constants of one engine. All are starting values that calibration corrects."""

    layer_launch_s: float
    """Launching one layer's kernels on a GPU, without a CUDA graph."""
    layer_calls: int = 60
    """Kernels of one layer: what a measured launch is multiplied by."""
    doubt: str = ""
    """What a plan says where launches matter and nothing was measured."""
    has_cuda_graph: bool = False
    """Whether decode runs as one graph, without the launches, while no expert is on a GPU."""
    expert_loop_s: float = 0.0
    """For every expert of a layer on a GPU, used or not: Marlin experts in a Python loop."""
    streams_prefill: bool = False
    """Whether long prompts copy experts to a GPU instead of multiplying on the host."""
    overlaps_shared: bool = True
    """Whether the shared expert runs on its GPU while the host works on the routed ones."""
    host_layer_s: float = 0.03e-3
    """Around the operators of a layer that runs on the host: norms, rotation, routing."""
    token_s: float = 0.0
    """Of one token outside of the layers and lm_head, on the host: the embedding, the last norm,
    the choice of the next token."""
    host_efficiency: float = 0.53
    """Share of the host's measured bandwidth that experts reach."""


LAYER_CALLS = 60
"""Calls of torch in one DeepSeek layer of the builtin engine, counted in its decode."""
EAGER_CALL_S = 8e-6
"""Of an eager call on a GPU, dispatch and launch. An assumption: nobody has timed this engine on
one. It makes 0.48 ms a layer; the nearest measurement is KTransformers' 0.74 ms without a graph.
CUDA graphs would save most of it, and are left out until they were timed: a plan is not to promise
what nobody saw."""

_KTRANSFORMERS = EngineTimes(
    layer_launch_s=0.74e-3,  # measured on an A6000 machine
    has_cuda_graph=True,
    expert_loop_s=29e-6,  # 7 to 8 ms for a DeepSeek-V3 layer of 256 experts
)

ENGINE_TIMES: Mapping[str, EngineTimes] = {
    "builtin": EngineTimes(
        layer_launch_s=LAYER_CALLS * EAGER_CALL_S,
        layer_calls=LAYER_CALLS,
        token_s=0.3e-3,  # 0.39 ms by parts of `mini` on a 2-core EPYC of 2 GHz
        host_layer_s=0.05e-3,  # 0.03 ms by the probe of a 2-core EPYC, one kernel call a half layer
        doubt="launches on GPUs are a cautious guess, 60 calls of torch a layer at 8 µs each and "
        "no CUDA graph: builtin has not been timed on a GPU yet, and `probe` there corrects it",
    ),
    "ktransformers-0.2.1": _KTRANSFORMERS,
    "ktransformers-0.3": _KTRANSFORMERS,
    "ktransformers-0.3.2": _KTRANSFORMERS,
    "llama.cpp": EngineTimes(layer_launch_s=0.02e-3, streams_prefill=True, overlaps_shared=False),
}
GENERIC = EngineTimes(layer_launch_s=0.1e-3)
"""Of engines that have no profile here."""


def engine_times(engine: str) -> EngineTimes:
    """The profile of an engine, or the generic one."""
    return ENGINE_TIMES.get(engine, GENERIC)
