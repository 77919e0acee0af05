"""Measures a footprint: loads a placement in this process and watches what the process takes."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from autoplace.bench.footprint import Footprint, Pool
from autoplace.bench.measure import WARM_UP_TOKENS
from autoplace.bench.measurement import workload_tokens
from autoplace.bench.request import TrialRequest
from autoplace.bench.residency import resident_share, warm
from autoplace.bench.threads import set_threads
from autoplace.bench.worker import Loadable

SAMPLE_S = 0.002


def measure_footprint(request: TrialRequest) -> Footprint:
    """Load, prefill and decode once in a process that has held no model before."""
    set_threads(request.settings.num_threads)
    _load_libraries()
    loadable = Loadable.of(request)
    prompt, output = workload_tokens(
        request.workload, loadable.spec.geometry.vocab, request.measure.seed
    )
    with _peak_anonymous_bytes() as anonymous, loadable.loaded() as model:
        mapped = model.mapped_weights()
        mapped_bytes = sum(array.nbytes for array in mapped)
        warm(mapped)
        model.prefill(prompt)
        for token in output[:WARM_UP_TOKENS]:
            model.decode(token)
        resident_bytes = round(resident_share(mapped) * mapped_bytes)
        declared = {name: loadable.ledger.peak(name) for name in loadable.ledger.devices}
    host = {"cpu": declared.get("cpu", 0)}
    if request.machine.emulated:
        host, declared = declared, {}
    pools = {"host": Pool(sum(host.values()) - mapped_bytes, anonymous.peak_bytes)}
    for name, n_bytes in declared.items():
        if name != "cpu":
            pools[name] = Pool(n_bytes, torch.cuda.max_memory_reserved(name))
    return Footprint(pools, mapped_bytes, resident_bytes)


def _load_libraries() -> None:
    """What the first product and softmax of a process allocate is not the model's."""
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.ones(64, 64, dtype=dtype)
        (x @ x).softmax(-1)
    gc.collect()


class _Peak:
    """Growth of this process's anonymous pages, sampled from a thread."""

    def __init__(self) -> None:
        self._before = _anonymous_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak_bytes = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, _anonymous_bytes() - self._before)
            if self._stop.wait(SAMPLE_S):
                return


@contextmanager
def _peak_anonymous_bytes() -> Iterator[_Peak]:
    peak = _Peak()
    peak.start()
    try:
        yield peak
    finally:
        peak.stop()


def _anonymous_bytes() -> int:
    """`RssAnon` of proc(5)'s status, in kB there; shared memory counts too."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if line
    )
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
