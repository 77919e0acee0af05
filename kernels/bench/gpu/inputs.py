"""Random matrices for the products, beside the values that they stand for, and their references."""

import torch
from torch import Tensor
from torch.nn import functional

from autoplace.kernels.triton.matrices import Matrices
from autoplace.operators.marlin import MarlinFormat, pack_rows_twin, unpack_rows


def matrices_of(
    count: int, out: int, width: int, bits: int, device: torch.device
) -> tuple[Matrices, Tensor]:
    """`count` matrices, packed or (0 bits) bfloat16, and their float32 values [E, out, width]."""
    if bits == 0:
        plain = (torch.randn(count, out, width, device=device) / width**0.5).bfloat16()
        return Matrices.plain(plain), plain.float()
    form = MarlinFormat(out, width, bits)
    blocks = torch.zeros(count, form.n_bytes, dtype=torch.uint8, device=device)
    for block in blocks:
        pack_rows_twin(torch.randn(out, width, device=device) / width**0.5, 0, block, form)
    values = torch.stack([unpack_rows(0, out, block, form) for block in blocks])
    return Matrices.packed(blocks, out, width, bits), values


def bytes_of_one(matrices: Matrices) -> int:
    """Of one matrix, scales included."""
    scales = matrices.scales[0].nbytes if matrices.bits else 0
    return matrices.data[0].nbytes + scales


def routed(
    tokens: int, count: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Random activations, distinct experts of each token, weights."""
    x = torch.randn(tokens, width, device=device).bfloat16()
    ids = torch.rand(tokens, count, device=device).topk(min(6, count // 2)).indices
    return x, ids, torch.rand(ids.shape, device=device)


def expected_experts(x: Tensor, ids: Tensor, weights: Tensor, values: list[Tensor]) -> Tensor:
    """The weighted sum of each token's experts in float32, one expert after the other."""
    out = torch.zeros(x.shape, device=x.device)
    gate, up, down = values
    for expert in sorted(set(ids.flatten().tolist())):
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        rows = x[tokens].float()
        hidden = functional.silu(rows @ gate[expert].T) * (rows @ up[expert].T)
        out.index_add_(0, tokens, hidden @ down[expert].T * weights[tokens, slots, None])
    return out
