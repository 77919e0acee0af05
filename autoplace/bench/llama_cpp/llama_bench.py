"""Measures with `llama-bench`: the prompt by itself, then the output behind a prompt of its length.

Its prompts and outputs are random tokens of a fixed seed, the same for every trial. Its prompt
time is that of `llama_decode` with the last token's logits: the prefill latency.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoplace.bench.llama_cpp.clock import TimedUsage
from autoplace.bench.llama_cpp.log import buffers, larger
from autoplace.bench.llama_cpp.measured import Measured, ProgramFailedError
from autoplace.bench.llama_cpp.program import Ended, Program
from autoplace.bench.llama_cpp.tools import BENCH
from autoplace.bench.measurement import Measurement, settled
from autoplace.bench.metrics import DeviceBytes
from autoplace.bench.request import LlamaCppRun, TrialRequest
from autoplace.bench.usage import NOTHING, Usage

OUTPUT = ("-o", "jsonl", "--progress", "-v")
_TIMED_RUN = re.compile(r"benchmark \d+/\d+: (?:depth|prompt|generation) run \d+/\d+")


@dataclass(frozen=True)
class _Tested:
    """One call of llama-bench."""

    seconds: tuple[float, ...]
    """Of each repeat."""
    usage: Usage
    load_s: float
    build: str
    ended: Ended


def measure_with_bench(
    request: TrialRequest,
    run: LlamaCppRun,
    *,
    tensor_bytes: int,
    servers: Callable[[], Iterable[int]],
    deadline_s: float,
    repeats_until_s: float,
) -> Measured:
    """Rounds of repeats until they settle. Raise `ProgramFailedError`, `AutoplaceError`.

    `tensor_bytes`: of all the model's. `servers`: pids of RPC servers. No round begins that would,
    by the last one, end after `repeats_until_s`; a call that is not over by `deadline_s` is killed.
    """
    bench = _Bench(request, run, tensor_bytes, servers, deadline_s)
    settings, workload = request.measure, request.workload
    num_decoded = max(1, workload.output_tokens - 1)
    by_device = bench.memory_of_the_whole_context(num_decoded)
    prefill_s: list[float] = []
    decode_s: list[float] = []
    tests: list[_Tested] = []
    cut_short = False

    def usage() -> Usage:
        return sum((test.usage for test in tests), NOTHING)

    while not settled(prefill_s, decode_s, settings, usage):
        begin_s = time.monotonic()
        count = min(settings.min_repeats, settings.max_repeats - len(prefill_s))
        prompt = bench.test(prompt=workload.prompt_tokens, output=0, depth=0, repeats=count)
        output = bench.test(
            prompt=0, output=num_decoded, depth=workload.prompt_tokens, repeats=count
        )
        tests += [prompt, output]
        prefill_s += prompt.seconds
        decode_s += output.seconds
        if 2 * time.monotonic() - begin_s > repeats_until_s:
            cut_short = len(prefill_s) < settings.max_repeats
            break
    for test in tests:
        by_device = larger(by_device, bench.buffers_of(test.ended))
    return Measured(
        Measurement(tuple(prefill_s), tuple(decode_s), num_decoded, usage(), cut_short),
        by_device,
        load_s=tests[0].load_s,
        build=tests[0].build,
        log=tests[0].ended.log,
    )


class _Bench:
    """llama-bench with the arguments of a trial."""

    def __init__(
        self,
        request: TrialRequest,
        run: LlamaCppRun,
        tensor_bytes: int,
        servers: Callable[[], Iterable[int]],
        deadline_s: float,
    ) -> None:
        self._request, self._tensor_bytes = request, tensor_bytes
        self._program = run.tools.programs[BENCH]
        self._words = run.args.to_command(self._program.path)
        self._servers = servers
        self._deadline_s = deadline_s
        self._program.require([*self._words, *OUTPUT, "-p", "-n", "-d", "-r", "--no-warmup"])

    def memory_of_the_whole_context(self, num_decoded: int) -> dict[str, DeviceBytes]:
        """Bytes with a cache of the workload's context, where that is more than tests make."""
        workload = self._request.workload
        if workload.context_tokens <= workload.prompt_tokens + num_decoded + 1:
            return {}
        words = ["-p", str(workload.context_tokens), "-n", "0", "-r", "0", "--no-warmup"]
        ended = self._call(words, TimedUsage(list))
        return self.buffers_of(ended)

    def buffers_of(self, ended: Ended) -> dict[str, DeviceBytes]:
        return buffers(ended.log, self._request.machine, tensor_bytes=self._tensor_bytes)

    def test(self, *, prompt: int, output: int, depth: int, repeats: int) -> _Tested:
        words = [f"-p {prompt}", f"-n {output}", f"-d {depth}", f"-r {repeats}"]
        began_s = time.monotonic()
        pids: list[int] = []
        clock = TimedUsage(lambda: [*pids, *self._servers()])
        ended = self._call(" ".join(words).split(), clock, pids)
        (answer,) = self._answers(ended)
        return _Tested(
            tuple(ns / 1e9 for ns in answer["samples_ns"]),
            clock.so_far(),
            load_s=(clock.first_s or time.monotonic()) - began_s,
            build=f"{answer['build_number']} ({answer['build_commit']})",
            ended=ended,
        )

    def _call(
        self, words: Sequence[str], clock: TimedUsage, pids: list[int] | None = None
    ) -> Ended:
        def on_log(line: str) -> None:
            if _TIMED_RUN.search(line):
                clock.begin()

        command = [*self._words, *words, *OUTPUT]
        with Program(command, on_log=on_log, on_answer=lambda line: clock.end()) as program:
            if pids is not None:
                pids.append(program.pid)
            ended = program.wait(self._deadline_s)
        if ended.returncode != 0 or ended.timed_out:
            raise ProgramFailedError(ended)
        return ended

    def _answers(self, ended: Ended) -> list[Mapping[str, Any]]:
        try:
            answers = [json.loads(line) for line in ended.answer if line.startswith("{")]
        except json.JSONDecodeError:
            answers = []
        if len(answers) != 1 or not answers[0].get("samples_ns"):
            raise ProgramFailedError(ended)
        return answers
