"""Runs trials against the cost model: the same study, and every number says it is predicted."""

from collections.abc import Mapping

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.metrics import Basis, DeviceBytes, Metrics, Outcome, Spread, Status
from autoplace.bench.request import TrialRequest
from autoplace.placement.memory import plan_memory
from autoplace.placement.totals import DeviceMemory
from autoplace.predict.latency import LatencyModel, Prediction
from autoplace.rules.match import assign
from autoplace.rules.read import parse_rules
from autoplace.rules.read_back import read_back
from autoplace.tuner.candidate import DTYPE_BYTES
from autoplace.tuner.runner import Runner


class PredictedRunner(Runner):
    """Loads nothing: reads the rules, adds up the bytes, divides by the bandwidths."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec

    def run(self, request: TrialRequest) -> Outcome:
        dtype_bytes = DTYPE_BYTES[request.dtype]
        rules = parse_rules(request.rules, source="the trial's rules").rules
        assignment = assign(rules, self._spec, engine=request.engine)
        plan = plan_memory(
            self._spec,
            assignment,
            workload=request.workload,
            settings=request.settings,
            dtype_bytes=dtype_bytes,
        )
        for device, over in plan.overrun_bytes(request.machine).items():
            if over > 0:
                return Outcome(
                    Status.OUT_OF_MEMORY,
                    Basis.PREDICTED,
                    reason=f"predicted to go over the budget of {device} by {over} B",
                    out_of_memory_device=device,
                    out_of_memory_bytes=over,
                )
        model = LatencyModel(
            self._spec,
            request.machine,
            request.workload,
            dtype_bytes=dtype_bytes,
            engine=request.engine,
        )
        prediction = model.predict(read_back(assignment, self._spec), request.settings)
        return Outcome(
            Status.OK,
            Basis.PREDICTED,
            metrics=_metrics(prediction, plan.by_device, request.workload.prompt_tokens),
        )

    def close(self) -> None:
        """Nothing is held."""


def _metrics(
    prediction: Prediction, by_device: Mapping[str, DeviceMemory], prompt_tokens: int
) -> Metrics:
    return Metrics(
        decode_tok_per_s=_exact(prediction.decode_tok_per_s),
        prefill_latency_s=_exact(prediction.prefill_latency_s),
        prefill_tok_per_s=prompt_tokens / prediction.prefill_latency_s,
        bytes_by_device={
            name: DeviceBytes(memory.weights, memory.kv_cache, memory.workspace, memory.peak)
            for name, memory in by_device.items()
        },
        bytes_per_token=prediction.bytes_per_token,
    )


def _exact(value: float) -> Spread:
    return Spread(value, value, value, 1)
