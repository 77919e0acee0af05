"""The kernels' face for one decoded token: a layer described once, half a layer to a call.

The structs are those of kernels/include/autoplace/decode.h, which says what each field means. They
hold addresses: whoever makes one keeps what they point to alive.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from autoplace.errors import AutoplaceError
from autoplace.native import Kernels, Weights

_INT, _LONG, _POINTER, _FLOAT = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


class Role(IntEnum):
    """What a decoded token's time goes to, inside the kernels."""

    ATTENTION = 0
    ROUTER = 1
    EXPERTS = 2
    SHARED = 3
    DENSE = 4
    NORMS = 5


class Matrix(ctypes.Structure):
    """y = W · x + bias with W [n, k]; an empty one is none."""

    _fields_ = (
        *(("data", _POINTER), ("bias", _POINTER), ("n", _LONG), ("k", _LONG)),
        *(("format", _INT), ("bias_dtype", _INT)),
    )

    @classmethod
    def of(
        cls, weights: Weights, n: int, k: int, *, bias_ptr: int | None = None, bias_dtype: int = 0
    ) -> "Matrix":
        return cls(weights.ptr, bias_ptr, n, k, weights.format, bias_dtype)


class Norm(ctypes.Structure):
    _fields_ = (("weight", _POINTER), ("width", _LONG), ("dtype", _INT), ("eps", _FLOAT))


class CacheRows(ctypes.Structure):
    """[capacity, width]; `format` is GGML's number of f32, f16, bf16 or q8_0."""

    _fields_ = (
        *(("values", _POINTER), ("scales", _POINTER), ("width", _LONG), ("capacity", _LONG)),
        ("format", _INT),
    )


class Mla(ctypes.Structure):
    _fields_ = (
        *((name, Norm) for name in ("input_norm", "q_a_norm", "kv_a_norm")),
        *((name, Matrix) for name in ("q", "q_a", "q_b", "kv_a", "o")),
        *(("keys", _POINTER), ("values", _POINTER), ("cache", CacheRows)),
        *((name, _LONG) for name in ("num_heads", "lora", "nope", "rope", "v")),
        *(("kv_b_dtype", _INT), ("interleaved", _INT), ("scale", _FLOAT)),
    )


class Gqa(ctypes.Structure):
    _fields_ = (
        *((name, Norm) for name in ("input_norm", "q_norm", "k_norm")),
        *((name, Matrix) for name in ("q", "k", "v", "o")),
        *(("key_cache", CacheRows), ("value_cache", CacheRows)),
        *((name, _LONG) for name in ("num_heads", "num_kv_heads", "head_dim", "rope")),
        *(("interleaved", _INT), ("scale", _FLOAT)),
    )


class Mlp(ctypes.Structure):
    _fields_ = (("gate", Matrix), ("up", Matrix), ("down", Matrix))


class Router(ctypes.Structure):
    _fields_ = (
        *(("weight", Matrix), ("bias", _POINTER)),
        *((name, _LONG) for name in ("top_k", "num_groups", "num_groups_used")),
        *(("sigmoid", _INT), ("normalise", _INT), ("scaling", _FLOAT)),
    )


class FeedForward(ctypes.Structure):
    _fields_ = (
        *(("norm", Norm), ("dense", Mlp), ("experts", Mlp), ("shared", Mlp)),
        *(("shared_gate", Matrix), ("router", Router)),
    )


class Layer(ctypes.Structure):
    """Addresses of a layer's halves: an `Mla` or a `Gqa`, the other null, and a `FeedForward`."""

    _fields_ = (("mla", _POINTER), ("gqa", _POINTER), ("feed_forward", _POINTER))


_PROBLEMS = {1: "unknown type", 2: "parts that do not fit together", 4: "not enough host memory"}
_CALLS: dict[str, tuple[object, list[object]]] = {
    "ap_mla": (ctypes.c_int, [_POINTER, _POINTER, ctypes.c_int, _LONG, _POINTER, _POINTER]),
    "ap_gqa": (ctypes.c_int, [_POINTER, _POINTER, ctypes.c_int, _LONG, _POINTER, _POINTER]),
    "ap_feed_forward": (ctypes.c_int, [_POINTER, _POINTER, ctypes.c_int, _POINTER]),
    "ap_layers": (
        ctypes.c_int,
        [_POINTER, _LONG, _POINTER, ctypes.c_int, _LONG, _POINTER, _POINTER],
    ),
    "ap_rms_norm": (ctypes.c_int, [_POINTER, _POINTER, ctypes.c_int, _LONG, _POINTER]),
    "ap_choose_experts": (ctypes.c_int, [_POINTER, _POINTER, _POINTER, _POINTER]),
    "ap_time_roles": (None, [ctypes.c_int]),
    "ap_role_times": (None, [_POINTER]),
}


@dataclass(frozen=True)
class Prepared:
    """A struct and its address: what a call passes, without making it anew."""

    struct: ctypes.Structure
    address: int

    @classmethod
    def of(cls, struct: ctypes.Structure) -> "Prepared":
        return cls(struct, ctypes.addressof(struct))


@dataclass(frozen=True)
class PreparedLayers:
    """Layers that one call runs; keeps what their halves point to alive."""

    halves: tuple[tuple[Prepared, Prepared], ...]
    """Attention and feed-forward of each."""
    structs: ctypes.Array[Layer]

    @classmethod
    def of(cls, halves: Sequence[tuple[Prepared, Prepared]]) -> "PreparedLayers":
        layers = [_layer(attention, other) for attention, other in halves]
        return cls(tuple(halves), (Layer * len(layers))(*layers))


def _layer(attention: Prepared, feed_forward: Prepared) -> Layer:
    if isinstance(attention.struct, Mla):
        return Layer(mla=attention.address, feed_forward=feed_forward.address)
    return Layer(gqa=attention.address, feed_forward=feed_forward.address)


class DecodeKernels:
    """Calls on one token x [D], float32 or bf16; `x_dtype` as `Kernels` takes it.

    Each raises `AutoplaceError` where the parts of a description do not fit together.
    """

    def __init__(self, kernels: Kernels) -> None:
        library = kernels.library
        for name, (result, arguments) in _CALLS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._mla, self._gqa = library.ap_mla, library.ap_gqa
        self._feed_forward, self._layers = library.ap_feed_forward, library.ap_layers
        self._rms_norm, self._choose = library.ap_rms_norm, library.ap_choose_experts
        self._time_roles, self._role_times = library.ap_time_roles, library.ap_role_times

    def attention(
        self,
        layer: Prepared,
        x_ptr: int,
        x_dtype: int,
        position: int,
        turns_ptr: int,
        out_ptr: int,
    ) -> None:
        """out = x + attention(norm(x)), for an `Mla` or a `Gqa`; writes the cache at `position`.

        `turns` [rope / 2, 2] float32 are cosines and sines; `out` may be `x`.
        """
        call = self._mla if isinstance(layer.struct, Mla) else self._gqa
        code = call(layer.address, x_ptr, x_dtype, position, turns_ptr, out_ptr)
        if code:
            _fail(code, f"{type(layer.struct).__name__} at {position=} for {x_dtype=}")

    def feed_forward(self, layer: Prepared, x_ptr: int, x_dtype: int, out_ptr: int) -> None:
        """out = x + feed_forward(norm(x)); `out` may be `x`."""
        code = self._feed_forward(layer.address, x_ptr, x_dtype, out_ptr)
        if code:
            _fail(code, f"FeedForward for {x_dtype=}")

    def layers(
        self,
        layers: PreparedLayers,
        x_ptr: int,
        x_dtype: int,
        position: int,
        turns_ptr: int,
        out_ptr: int,
    ) -> None:
        """out = x after all layers in turn; as `attention` and `feed_forward` of each."""
        count = len(layers.structs)
        code = self._layers(
            *(ctypes.addressof(layers.structs), count, x_ptr, x_dtype),
            *(position, turns_ptr, out_ptr),
        )
        if code:
            _fail(code, f"{count} layers at {position=} for {x_dtype=}")

    def rms_norm(
        self, norm: Prepared, x_ptr: int, x_dtype: int, num_tokens: int, out_ptr: int
    ) -> None:
        """out [T, width] = x / rms(x) · weight, each row; `out` may be `x`."""
        code = self._rms_norm(norm.address, x_ptr, x_dtype, num_tokens, out_ptr)
        if code:
            _fail(code, f"Norm for [{num_tokens}, width], {x_dtype=}")

    def choose_experts(
        self, router: Prepared, scores_ptr: int, ids_ptr: int, weights_ptr: int
    ) -> None:
        """ids [K] int64 and weights [K] float32 of one token's scores [E] float32."""
        code = self._choose(router.address, scores_ptr, ids_ptr, weights_ptr)
        if code:
            _fail(code, "Router")

    def time_roles(self, *, on: bool) -> None:
        """Count the time of this thread's calls by role from now on, or stop; sets all to zero."""
        self._time_roles(int(on))

    def role_seconds(self) -> dict[Role, float]:
        seconds = (ctypes.c_double * len(Role))()
        self._role_times(ctypes.addressof(seconds))
        return {role: seconds[role] for role in Role}


def _fail(code: int, what: str) -> None:
    raise AutoplaceError(f"{_PROBLEMS[code]}: {what}")
