"""Random layers as numpy arrays, their descriptions for the kernels and their float64 twins."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoplace import native_decode
from autoplace.native import Weights
from autoplace.native_decode import CacheRows, Matrix, Norm
from autoplace.weights.ggml import GGMLType

T = GGMLType
F32, BF16 = T.F32, T.BF16
Floats = NDArray[np.float32]
Exact = NDArray[np.float64]
KV_BOUNDS = {T.F32: 1e-6, T.F16: 2**-10, T.BF16: 2**-7, T.Q8_0: 1.5 / 127}
"""KV type → how far one value of a row may be off, of the row's largest."""


def to_bf16(x: Floats) -> NDArray[np.uint16]:
    """Round to nearest even; no NaN."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(x: NDArray[np.uint16]) -> Floats:
    return (x.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Arrays:
    """Seeded arrays that stay alive as long as descriptions point to them."""

    seed: int = 0
    dtype: GGMLType = F32
    kept: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def stored(self, *shape: int, scale: float = 1.0) -> tuple[int, Exact]:
        """The address of an array in `dtype`, and the values that it holds."""
        values = (self._rng.standard_normal(shape) * scale).astype(np.float32)
        data: NDArray[np.uint16] | Floats = to_bf16(values) if self.dtype == BF16 else values
        self.kept.append(data)
        held = from_bf16(data) if data.dtype == np.uint16 else values  # type: ignore[arg-type]
        return data.ctypes.data, held.astype(np.float64)

    def matrix(self, n: int, k: int, *, bias: bool = False) -> tuple[Matrix, "Linear"]:
        address, weight = self.stored(n, k, scale=k**-0.5)
        bias_ptr, b = self.stored(n) if bias else (None, np.zeros(n))
        described = Matrix.of(
            Weights(address, self.dtype), n, k, bias_ptr=bias_ptr, bias_dtype=self.dtype
        )
        return described, Linear(weight, b)

    def norm(self, width: int, eps: float = 1e-6) -> tuple[Norm, "RmsNorm"]:
        address, weight = self.stored(width)
        return Norm(address, width, self.dtype, eps), RmsNorm(weight, eps)

    def cache(self, capacity: int, width: int, ggml_type: GGMLType) -> tuple[CacheRows, "Cache"]:
        cache = Cache(ggml_type, capacity, width)
        self.kept.append(cache)
        return cache.described, cache


@dataclass(frozen=True)
class Linear:
    weight: Exact
    bias: Exact

    def __call__(self, x: Exact) -> Exact:
        result: Exact = self.weight @ x + self.bias
        return result


@dataclass(frozen=True)
class RmsNorm:
    weight: Exact
    eps: float

    def __call__(self, x: Exact) -> Exact:
        mean = np.mean(x * x, -1, keepdims=True)
        result: Exact = x / np.sqrt(mean + self.eps) * self.weight
        return result


class Cache:
    """Zeroed rows of one of the four types, read back as float64."""

    def __init__(self, ggml_type: GGMLType, capacity: int, width: int) -> None:
        self.ggml_type = ggml_type
        kind = {T.F32: np.float32, T.F16: np.float16, T.BF16: np.uint16, T.Q8_0: np.int8}
        self.values = np.zeros((capacity, width), kind[ggml_type])
        self.scales = np.zeros((capacity, max(1, width // 32)), np.float16)
        scales = self.scales.ctypes.data if ggml_type == T.Q8_0 else None
        self.described = CacheRows(self.values.ctypes.data, scales, width, capacity, int(ggml_type))

    def read(self, end: int) -> Exact:
        rows = self.values[:end]
        if self.ggml_type == T.BF16:
            return from_bf16(rows).astype(np.float64)
        wide = rows.astype(np.float64)
        if self.ggml_type == T.Q8_0:
            wide *= np.repeat(self.scales[:end].astype(np.float64), 32, axis=1)
        return wide


def turned(x: Exact, angles: Exact, *, interleaved: bool) -> Exact:
    """Pairs of the last dimension, turned as complex numbers."""
    half = x.shape[-1] // 2
    pairs = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    z = (pairs[0] + 1j * pairs[1]) * np.exp(1j * angles)
    out = np.empty_like(x)
    if interleaved:
        out[..., 0::2], out[..., 1::2] = z.real, z.imag
    else:
        out[..., :half], out[..., half:] = z.real, z.imag
    return out


def turns_of(angles: Exact) -> Floats:
    """[rope / 2, 2] cosines and sines."""
    return np.stack((np.cos(angles), np.sin(angles)), -1).astype(np.float32)


def softmax(scores: Exact) -> Exact:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    result: Exact = powers / powers.sum(-1, keepdims=True)
    return result


def silu(x: Exact) -> Exact:
    result: Exact = x / (1 + np.exp(-x))
    return result


@dataclass
class MlaLayer:
    """A layer of latent attention; `low` is q_lora_rank, 0 for none."""

    arrays: Arrays
    kv_type: GGMLType
    width: int
    heads: int
    low: int
    lora: int
    nope: int
    rope: int
    v: int
    capacity: int
    interleaved: bool

    def __post_init__(self) -> None:
        a = self.arrays
        self.struct = native_decode.Mla(
            num_heads=self.heads,
            lora=self.lora,
            nope=self.nope,
            rope=self.rope,
            v=self.v,
            kv_b_dtype=a.dtype,
            interleaved=self.interleaved,
            scale=(self.nope + self.rope) ** -0.5,
        )
        s, queries = self.struct, self.heads * (self.nope + self.rope)
        s.input_norm, self.input_norm = a.norm(self.width)
        if self.low:
            s.q_a, self.q_a = a.matrix(self.low, self.width)
            s.q_a_norm, self.q_a_norm = a.norm(self.low)
            s.q_b, self.q_b = a.matrix(queries, self.low)
        else:
            s.q, self.q = a.matrix(queries, self.width)
        s.kv_a, self.kv_a = a.matrix(self.lora + self.rope, self.width)
        s.kv_a_norm, self.kv_a_norm = a.norm(self.lora)
        s.o, self.o = a.matrix(self.width, self.heads * self.v)
        s.keys, self.keys = a.stored(self.heads, self.nope, self.lora, scale=self.lora**-0.5)
        s.values, self.values = a.stored(self.heads, self.v, self.lora, scale=self.lora**-0.5)
        s.cache, self.cache = a.cache(self.capacity, self.lora + self.rope, self.kv_type)

    def row(self, x: Exact, angles: Exact) -> Exact:
        """What this token's row of the cache stands for, unrounded."""
        latent = self.kv_a(self.input_norm(x))
        key = turned(latent[self.lora :], angles, interleaved=self.interleaved)
        return np.concatenate((self.kv_a_norm(latent[: self.lora]), key))

    def attend(self, x: Exact, position: int, angles: Exact) -> Exact:
        """x + attention, by expanded keys and values of the rows that the cache holds."""
        normed, rows = self.input_norm(x), self.cache.read(position + 1)
        q = self.q_b(self.q_a_norm(self.q_a(normed))) if self.low else self.q(normed)
        q = q.reshape(self.heads, -1)
        rope = turned(q[:, self.nope :], angles, interleaved=self.interleaved)
        latent = rows[:, : self.lora]
        keys = np.einsum("hnr,lr->hln", self.keys, latent)
        values = np.einsum("hvr,lr->hlv", self.values, latent)
        scores = np.einsum("hn,hln->hl", q[:, : self.nope], keys) + rope @ rows[:, self.lora :].T
        heads = np.einsum("hl,hlv->hv", softmax(scores * self.struct.scale), values)
        return x + self.o(heads.reshape(-1))


@dataclass
class GqaLayer:
    """A layer of grouped-query attention."""

    arrays: Arrays
    kv_type: GGMLType
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    rope: int
    capacity: int
    interleaved: bool
    qk_norm: bool
    bias: bool

    def __post_init__(self) -> None:
        a, keys = self.arrays, self.kv_heads * self.head_dim
        self.struct = native_decode.Gqa(
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            rope=self.rope,
            interleaved=self.interleaved,
            scale=self.head_dim**-0.5,
        )
        s, queries = self.struct, self.heads * self.head_dim
        s.input_norm, self.input_norm = a.norm(self.width)
        s.q, self.q = a.matrix(queries, self.width, bias=self.bias)
        s.k, self.k = a.matrix(keys, self.width, bias=self.bias)
        s.v, self.v = a.matrix(keys, self.width, bias=self.bias)
        s.o, self.o = a.matrix(self.width, queries)
        if self.qk_norm:
            s.q_norm, self.q_norm = a.norm(self.head_dim)
            s.k_norm, self.k_norm = a.norm(self.head_dim)
        s.key_cache, self.key_cache = a.cache(self.capacity, keys, self.kv_type)
        s.value_cache, self.value_cache = a.cache(self.capacity, keys, self.kv_type)

    def _turned(self, heads: Exact, angles: Exact) -> Exact:
        rope = turned(heads[:, : self.rope], angles, interleaved=self.interleaved)
        return np.concatenate((rope, heads[:, self.rope :]), -1)

    def rows(self, x: Exact, angles: Exact) -> tuple[Exact, Exact]:
        """What this token's rows of both caches stand for, unrounded."""
        normed = self.input_norm(x)
        k = self.k(normed).reshape(self.kv_heads, -1)
        k = self._turned(self.k_norm(k) if self.qk_norm else k, angles)
        return k.reshape(-1), self.v(normed)

    def attend(self, x: Exact, position: int, angles: Exact) -> Exact:
        q = self.q(self.input_norm(x)).reshape(self.heads, -1)
        q = self._turned(self.q_norm(q) if self.qk_norm else q, angles)
        shape = (position + 1, self.kv_heads, self.head_dim)
        keys, values = (
            np.repeat(cache.read(position + 1).reshape(shape), self.heads // self.kv_heads, axis=1)
            for cache in (self.key_cache, self.value_cache)
        )
        scores = np.einsum("hd,lhd->hl", q, keys) * self.struct.scale
        heads = np.einsum("hl,lhd->hd", softmax(scores), values)
        return x + self.o(heads.reshape(-1))


@dataclass
class MlpLayer:
    """SwiGLU, or a stack of `experts` of them."""

    arrays: Arrays
    width: int
    inner: int
    experts: int = 1

    def __post_init__(self) -> None:
        a, stack = self.arrays, self.experts
        gate, self.gate = a.stored(stack, self.inner, self.width, scale=self.width**-0.5)
        up, self.up = a.stored(stack, self.inner, self.width, scale=self.width**-0.5)
        down, self.down = a.stored(stack, self.width, self.inner, scale=self.inner**-0.5)
        self.struct = native_decode.Mlp(
            Matrix.of(Weights(gate, a.dtype), self.inner, self.width),
            Matrix.of(Weights(up, a.dtype), self.inner, self.width),
            Matrix.of(Weights(down, a.dtype), self.width, self.inner),
        )

    def __call__(self, x: Exact, expert: int = 0) -> Exact:
        hidden = silu(self.gate[expert] @ x) * (self.up[expert] @ x)
        result: Exact = self.down[expert] @ hidden
        return result
