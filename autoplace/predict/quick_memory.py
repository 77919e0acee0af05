"""Bytes of a placement by the sizes that the time model knows: quick, to within a MiB."""

from collections import Counter
from collections.abc import Mapping

from autoplace.placement.memory import layer_cache_bytes
from autoplace.placement.placement import Placement
from autoplace.placement.settings import RunSettings
from autoplace.placement.space import SearchSpace
from autoplace.placement.workspace import graph_bytes, workspace_bytes
from autoplace.predict.latency import LatencyModel
from autoplace.predict.predicted import Overrun
from autoplace.units import MIB


def quick_overrun(model: LatencyModel, space: SearchSpace) -> Overrun:
    """Bytes over the budget from the sizes that the model knows: a hundred times as fast as a plan.

    For `builtin`, to within the MiB that it adds for the small things that no rule names. What is
    chosen by it is planned exactly afterwards.
    """
    context = space.workload.context_tokens
    graphs = graph_bytes(space.spec.geometry, context_tokens=context)
    graphs = graphs if space.engine == "builtin" else 0
    budgets = {
        device.name: device.budget_bytes - (graphs if device.is_gpu else 0)
        for device in space.machine.devices
    }

    def overrun(placement: Placement, settings: RunSettings) -> Mapping[str, int]:
        cache_bytes = layer_cache_bytes(
            space.spec.geometry,
            context_tokens=context,
            kv_type=settings.kv_type,
        )
        besides = MIB + workspace_bytes(
            space.spec.geometry,
            prefill_chunk=settings.prefill_chunk,
            context_tokens=context,
        )
        layers = Counter(layer.device for layer in placement.layers)
        return {
            name: round(traffic.dense_bytes + traffic.expert_bytes)
            + layers[name] * cache_bytes
            + besides
            - budgets[name]
            for name, traffic in model.traffic.of(placement, settings).items()
        }

    return overrun
