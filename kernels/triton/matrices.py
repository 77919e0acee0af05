"""Weight matrices as the kernels read them: packed words with their scales, or plain values."""

from dataclasses import dataclass

from torch import Tensor, bfloat16, float32, int32, uint8

GROUP, TILE_ROWS = 64, 16
PLAIN_DTYPES = (bfloat16, float32)


@dataclass(frozen=True, eq=False)
class Matrices:
    """E matrices [out_features, in_features] of one form."""

    data: Tensor
    """Packed: int32 words [E, words of a matrix]. Plain: values [E, out · in]."""
    scales: Tensor
    """Packed: bfloat16 [E, scales of a matrix]. Plain: `data` again; nobody reads it."""
    bits: int
    """4 or 8 packed, 0 plain."""
    out_features: int
    in_features: int

    @property
    def count(self) -> int:
        return self.data.shape[0]

    @classmethod
    def packed(
        cls, blocks: Tensor, out_features: int, in_features: int, num_bits: int
    ) -> "Matrices":
        """Views of uint8 [E, bytes of a matrix] in the format of `marlin_format.hpp`."""
        n, k = -(-out_features // 64) * 64, -(-in_features // 128) * 128
        code_bytes = n * k * num_bits // 8
        n_bytes = code_bytes + k // GROUP * n * 2
        if num_bits not in (4, 8):
            raise ValueError(f"expected 4 or 8 bits but got {num_bits=}")
        if blocks.dtype is not uint8 or blocks.ndim != 2 or blocks.shape[1] != n_bytes:
            raise ValueError(
                f"expected uint8 [E, {n_bytes}] for {num_bits}-bit [{out_features}, {in_features}] "
                f"but got {blocks.dtype} {list(blocks.shape)}"
            )
        codes, scales = blocks[:, :code_bytes], blocks[:, code_bytes:]
        return cls(codes.view(int32), scales.view(bfloat16), num_bits, out_features, in_features)

    @classmethod
    def plain(cls, weight: Tensor) -> "Matrices":
        """A view of contiguous [out, in] or [E, out, in] in bfloat16 or float32."""
        if (
            weight.dtype not in PLAIN_DTYPES
            or weight.ndim not in (2, 3)
            or not weight.is_contiguous()
        ):
            raise ValueError(
                "expected contiguous bfloat16 or float32 [E, out, in] but got "
                f"{weight.dtype} {list(weight.shape)} with strides {list(weight.stride())}"
            )
        out_features, in_features = weight.shape[-2:]
        data = weight.view(-1, out_features * in_features)
        return cls(data, data, 0, out_features, in_features)
