"""Cache rows: what is written is read, as exactly as the type can hold it."""

import pytest
import torch

from autoplace.errors import AutoplaceError
from autoplace.hardware.ledger import Ledger
from autoplace.models.allocation import Allocator
from autoplace.models.kv_cache import cache_rows
from autoplace.models.place import HOST
from autoplace.placement.settings import KV_TYPES

CONTEXT, WIDTH = 10, 64


def _rows(n: int) -> torch.Tensor:
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("kv_type", "relative"), [("f32", 0), ("f16", 2**-11), ("bf16", 2**-8), ("q8_0", 0.5 / 127)]
)
def test_rows_come_back_within_half_a_step(kv_type: str, relative: float) -> None:
    rows = cache_rows(CONTEXT, WIDTH, kv_type, HOST, Allocator(Ledger({})), what="test")
    written = _rows(7)
    rows.write(written[:4], 0)
    rows.write(written[4:], 4)
    read = rows.read(7, torch.float32)
    assert (read - written).abs().max() <= relative * 1.01 * written.abs().max()
    assert rows.read(3, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_the_declared_bytes_are_those_of_the_type(kv_type: str) -> None:
    ledger = Ledger({})
    cache_rows(CONTEXT, WIDTH, kv_type, HOST, Allocator(ledger), what="test")
    n_bytes, num_values = KV_TYPES[kv_type]
    assert ledger.taken("cpu", "kv_cache") == CONTEXT * WIDTH * n_bytes // num_values


def test_q8_0_needs_rows_of_whole_blocks() -> None:
    with pytest.raises(AutoplaceError, match="multiple of 32 values, but test has 48"):
        cache_rows(CONTEXT, 48, "q8_0", HOST, Allocator(Ledger({})), what="test")
