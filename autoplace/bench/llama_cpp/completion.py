"""Measures through a llama.cpp server: the workload's own tokens in, the output's tokens out.

The times are the server's own. `prompt_ms` ends and `predicted_ms` begins when the first token of
the output is sampled (b9993, tools/server/server-context.cpp), so that n tokens take n - 1 decodes.
"""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from autoplace.bench.llama_cpp.clock import TimedUsage
from autoplace.bench.llama_cpp.measured import ProgramFailedError
from autoplace.bench.llama_cpp.program import Program
from autoplace.bench.measurement import Measurement, settled
from autoplace.bench.request import MeasureSettings

POLL_S = 0.05
WARM_UP_TOKENS = 2


class ServerClient:
    """Asks one server, which runs as `program`, until the deadline."""

    def __init__(self, program: Program, address: str, deadline_s: float) -> None:
        self._program = program
        self._address = address
        self._deadline_s = deadline_s

    def wait_until_loaded(self) -> None:
        """Raise `ProgramFailedError` if it ends first, or is not ready by the deadline."""
        while not self._is_healthy():
            if not self._program.lives or time.monotonic() > self._deadline_s:
                raise ProgramFailedError(self._program.wait(self._deadline_s))
            time.sleep(POLL_S)

    def measure(
        self,
        prompt: Sequence[int],
        num_decoded: int,
        settings: MeasureSettings,
        *,
        others: Callable[[], Iterable[int]],
        repeats_until_s: float,
    ) -> Measurement:
        """Warm up, then repeat as `bench.measure` does."""
        self.timings(prompt, WARM_UP_TOKENS)
        clock = TimedUsage(lambda: [self._program.pid, *others()])
        clock.begin()
        prefill_s: list[float] = []
        decode_s: list[float] = []
        cut_short = False
        while not settled(prefill_s, decode_s, settings, clock.so_far):
            expected_s = prefill_s[-1] + decode_s[-1] if prefill_s else 0.0
            if prefill_s and time.monotonic() + expected_s > repeats_until_s:
                cut_short = True
                break
            timings = self.timings(prompt, num_decoded + 1)
            prefill_s.append(timings["prompt_ms"] / 1e3)
            decode_s.append(timings["predicted_ms"] / 1e3)
        clock.end()
        return Measurement(
            tuple(prefill_s), tuple(decode_s), num_decoded, clock.so_far(), cut_short
        )

    def timings(self, prompt: Sequence[int], num_tokens: int) -> Mapping[str, float]:
        """Of one completion of so many tokens. Raise `ProgramFailedError` if it is not given."""
        answer = self._post(
            {
                "prompt": list(prompt),
                "n_predict": num_tokens,
                "temperature": 0,
                "top_k": 1,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        timings = answer.get("timings", {})
        if timings.get("prompt_n") != len(prompt) or timings.get("predicted_n") != num_tokens:
            raise ProgramFailedError(self._program.end())
        return dict(timings)

    def _post(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        request = urllib.request.Request(
            f"{self._address}/completion",
            data=json.dumps(question).encode(),
            headers={"Content-Type": "application/json"},
        )
        left_s = max(0.1, self._deadline_s - time.monotonic())
        try:
            with urllib.request.urlopen(request, timeout=left_s) as answer:
                return dict(json.load(answer))
        except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
            late = time.monotonic() >= self._deadline_s
            ended = self._program.wait(self._deadline_s if late else time.monotonic() + 1)
            raise ProgramFailedError(ended) from error

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._address}/health", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except (OSError, http.client.HTTPException):
            return False
