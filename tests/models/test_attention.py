"""Attention of many queries, on CPUs whose torch multiplies bf16 and on those whose does not."""

import pytest
import torch

from autoplace.models import backend
from autoplace.models.attention import attend_many, causal_mask

HEADS, TOKENS, WIDTH, VALUES = 4, 9, 24, 16


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("groups", [HEADS, 2])
def test_attention_keeps_its_type_whatever_it_multiplies_in(
    monkeypatch: pytest.MonkeyPatch, fast: bool, dtype: torch.dtype, groups: int
) -> None:
    monkeypatch.setattr(backend, "_bf16_products_by_torch", lambda: fast)
    torch.manual_seed(0)
    query = torch.randn(HEADS, TOKENS, WIDTH).to(dtype)
    keys, values = (torch.randn(groups, TOKENS, w).to(dtype) for w in (WIDTH, VALUES))
    mask = causal_mask(TOKENS, TOKENS, torch.device("cpu"))
    out = attend_many(query, keys, values, mask, 0.2)
    assert out.dtype == dtype
    wide = [part.double().repeat_interleave(HEADS // groups, 0) for part in (keys, values)]
    scores = query.double() @ wide[0].transpose(1, 2) * 0.2
    assert mask is not None
    expected = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ wide[1]
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    assert (out.double() - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("fast", [True, False])
def test_only_bf16_is_widened_and_only_where_it_is_slow(
    monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    monkeypatch.setattr(backend, "_bf16_products_by_torch", lambda: fast)
    narrow, wide = torch.ones(2, dtype=torch.bfloat16), torch.ones(2)
    assert backend.for_products(narrow).dtype == (torch.bfloat16 if fast else torch.float32)
    assert backend.for_products(wide) is wide
