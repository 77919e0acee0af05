"""Bytes and reasons out of llama.cpp's log: lines of b9993, run over two RPC servers."""

import pytest

from autoplace.bench.llama_cpp.log import buffers, device_of, no_memory
from autoplace.units import MIB
from tests.bench.llama_cpp.installed import machine

LOG = """load_tensors: loading model tensors, this can take a while... (mmap = true)
load_tensors:   CPU_Mapped model buffer size =    28.69 MiB
load_tensors: RPC0[127.0.0.1:15052] model buffer size =    50.00 MiB
load_tensors: RPC0[127.0.0.1:15053] model buffer size =    41.00 MiB
llama_context: constructing llama_context
llama_context:        CPU  output buffer size =     0.25 MiB
llama_kv_cache: RPC0[127.0.0.1:15052] KV buffer size =     4.50 MiB
sched_reserve: RPC0[127.0.0.1:15052] compute buffer size =     1.00 MiB
sched_reserve:        CPU compute buffer size =     0.50 MiB
~llama_context:        CPU compute buffer size is   9.0000 MiB, matches expectation
""".splitlines()


def test_buffers_are_added_up_by_device_and_kind() -> None:
    found = buffers(LOG, machine("rpc-64-128mib"))
    assert set(found) == {"cpu", "rpc:0", "rpc:1"}
    first = found["rpc:0"]
    assert (first.weights, first.kv_cache, first.workspace) == (50 * MIB, 4.5 * MIB, MIB)
    assert first.peak == 55.5 * MIB
    assert found["cpu"].workspace == 0.75 * MIB


def test_a_second_context_replaces_the_first_but_not_the_model() -> None:
    again = [
        "llama_context: constructing llama_context",
        "llama_kv_cache: RPC0[127.0.0.1:15052] KV buffer size =     2.00 MiB",
    ]
    found = buffers([*LOG, *again], machine("rpc-64-128mib"))
    assert found["rpc:0"].kv_cache == 2 * MIB
    assert found["rpc:0"].weights == 50 * MIB
    assert found["cpu"].workspace == 0


def test_shards_and_two_caches_add_up_while_a_grown_compute_buffer_replaces() -> None:
    more = [
        "load_tensors:   CPU_Mapped model buffer size =    10.00 MiB",
        "llama_kv_cache: RPC0[127.0.0.1:15052] KV buffer size =     1.00 MiB",
        "sched_reserve: RPC0[127.0.0.1:15052] compute buffer size =     3.00 MiB",
    ]
    found = buffers([*LOG, *more], machine("rpc-64-128mib"))
    assert found["cpu"].weights == round(28.69 * MIB) + 10 * MIB
    assert found["rpc:0"].kv_cache == 5.5 * MIB
    assert found["rpc:0"].workspace == 3 * MIB


@pytest.mark.parametrize(("all_mib", "mapped_mib"), [(100, 9), (119, 28), (200, 28.69), (80, 0)])
def test_of_a_mapped_file_no_more_is_counted_than_other_buffers_leave(
    all_mib: int, mapped_mib: float
) -> None:
    """50 and 41 MiB are on the servers."""
    found = buffers(LOG, machine("rpc-64-128mib"), tensor_bytes=all_mib * MIB)
    assert found["cpu"].weights == round(mapped_mib * MIB)
    assert found["rpc:0"].weights == 50 * MIB


def test_weights_that_are_repacked_are_not_counted_where_they_came_from() -> None:
    log = [
        "load_tensors: loading model tensors, this can take a while... (mmap = true)",
        "load_tensors:   CPU_Mapped model buffer size =    90.00 MiB",
        "load_tensors:   CPU_REPACK model buffer size =    60.00 MiB",
    ]
    assert buffers(log, machine(), tensor_bytes=95 * MIB)["cpu"].weights == 95 * MIB


@pytest.mark.parametrize(
    ("buffer", "device"),
    [("CUDA1", "cuda:1"), ("CUDA_Host", "cpu"), ("CPU_REPACK", "cpu"), ("CPU_Mapped", "cpu")],
)
def test_buffers_belong_to_devices(buffer: str, device: str) -> None:
    assert device_of(buffer, machine()) == device


@pytest.mark.parametrize(
    ("line", "device", "n_bytes"),
    [
        (
            "alloc_tensor_range: failed to allocate RPC0[127.0.0.1:15053] buffer of size 90000000",
            "rpc:1",
            90_000_000,
        ),
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2048.00 MiB on device 1: "
            "cudaMalloc failed: out of memory",
            "cuda:1",
            2048 * MIB,
        ),
        ("llama_kv_cache: failed to allocate buffer for kv cache", None, None),
        ("what():  std::bad_alloc", None, None),
    ],
)
def test_an_allocation_that_failed_names_its_device(
    line: str, device: str | None, n_bytes: int | None
) -> None:
    found = no_memory([*LOG, line], machine("rpc-64-128mib"))
    assert found is not None
    assert (found.device, found.n_bytes) == (device, n_bytes)


def test_a_log_of_a_good_run_has_no_failed_allocation() -> None:
    assert no_memory(LOG, machine("rpc-64-128mib")) is None
