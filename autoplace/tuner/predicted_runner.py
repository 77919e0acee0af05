"""Runs trials against the cost model: the same study, and every number says it is predicted."""

import math
import random
from collections import Counter
from collections.abc import Mapping

from autoplace.architectures.spec import ModelSpec
from autoplace.bench.metrics import Basis, DeviceBytes, Metrics, Outcome, Spread, Status
from autoplace.bench.request import TrialRequest
from autoplace.placement.memory import plan_memory
from autoplace.placement.totals import DeviceMemory
from autoplace.predict.calibration import Calibration
from autoplace.predict.latency import LatencyModel
from autoplace.rules.match import assign
from autoplace.rules.read import parse_rules
from autoplace.rules.read_back import read_back
from autoplace.tuner.candidate import DTYPE_BYTES
from autoplace.tuner.runner import Runner


class PredictedRunner(Runner):
    """Loads nothing: reads the rules, adds up the bytes, divides by the bandwidths.

    With a `bias` it plays a machine that the time model is wrong about: every kind of cost takes a
    log-normal factor of that standard deviation, drawn once from the seed. With `noise`, every run
    takes another one.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        calibration: Calibration | None = None,
        bias: float = 0.0,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._spec = spec
        self._calibration = calibration or Calibration()
        self._bias, self._noise, self._seed = bias, noise, seed
        self._num_runs: Counter[str] = Counter()

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
                reason = f"predicted to go over the budget of {device} by {over} B"
                return Outcome.out_of_memory(device, reason, Basis.PREDICTED, over_bytes=over)
        model = LatencyModel(
            self._spec,
            request.machine,
            request.workload,
            dtype_bytes=dtype_bytes,
            engine=request.engine,
            calibration=self._calibration,
        )
        placement = read_back(assignment, self._spec)
        prediction = model.predict(placement, request.settings)
        decode_s, prefill_s = model.by_key(placement, request.settings)
        noise = self._noises(request)
        return Outcome(
            Status.OK,
            Basis.PREDICTED,
            metrics=_metrics(
                plan.by_device,
                decode_s=self._biased(decode_s, "decode") * noise[0],
                prefill_s=self._biased(prefill_s, "prefill") * noise[1],
                prompt_tokens=request.workload.prompt_tokens,
                bytes_per_token=prediction.bytes_per_token,
            ),
        )

    def _biased(self, seconds: Mapping[str, float], phase: str) -> float:
        return sum(
            s * math.exp(random.Random(f"{self._seed} {phase} {key}").gauss(0, self._bias))
            for key, s in seconds.items()
        )

    def _noises(self, request: TrialRequest) -> tuple[float, float]:
        """The same for the same run of the same trial, whatever was run between."""
        what = f"{self._seed} {request.rules} {request.settings}"
        self._num_runs[what] += 1
        rng = random.Random(f"{what} {self._num_runs[what]}")
        return math.exp(rng.gauss(0, self._noise)), math.exp(rng.gauss(0, self._noise))

    def close(self) -> None:
        """Nothing is held."""


def _metrics(
    by_device: Mapping[str, DeviceMemory],
    *,
    decode_s: float,
    prefill_s: float,
    prompt_tokens: int,
    bytes_per_token: int,
) -> Metrics:
    return Metrics(
        decode_tok_per_s=_exact(1 / decode_s),
        prefill_latency_s=_exact(prefill_s),
        prefill_tok_per_s=prompt_tokens / prefill_s,
        bytes_by_device={
            name: DeviceBytes(memory.weights, memory.kv_cache, memory.workspace, memory.peak)
            for name, memory in by_device.items()
        },
        bytes_per_token=bytes_per_token,
    )


def _exact(value: float) -> Spread:
    return Spread(value, value, value, 1)
