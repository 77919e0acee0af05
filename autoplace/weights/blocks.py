"""How the bytes of each GGML block are laid out.

Source: the `block_*` structs of ggml's `ggml-common.h`. Everything is little-endian and packed.
"""

import numpy as np

from autoplace.weights.ggml import BLOCKS, GGMLType

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The 16 levels of IQ4_NL and IQ4_XS (`kvalues_iq4nl`)."""

MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""The 16 levels of MXFP4, doubled: E2M1 of the OCP microscaling formats, version 1.0."""

LAYOUTS: dict[GGMLType, np.dtype[np.void]] = {
    GGMLType.Q4_0: np.dtype([("d", "<f2"), ("qs", "u1", 16)]),
    GGMLType.Q4_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)]),
    GGMLType.Q5_0: np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]),
    GGMLType.Q5_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]),
    GGMLType.Q8_0: np.dtype([("d", "<f2"), ("qs", "i1", 32)]),
    GGMLType.Q2_K: np.dtype(
        [("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")]
    ),
    GGMLType.Q3_K: np.dtype(
        [("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")]
    ),
    GGMLType.Q4_K: np.dtype(
        [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)]
    ),
    GGMLType.Q5_K: np.dtype(
        [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
    ),
    GGMLType.Q6_K: np.dtype(
        [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]
    ),
    GGMLType.IQ4_NL: np.dtype([("d", "<f2"), ("qs", "u1", 16)]),
    GGMLType.IQ4_XS: np.dtype(
        [("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)]
    ),
    GGMLType.MXFP4: np.dtype([("e", "u1"), ("qs", "u1", 16)]),
}
"""Fields of a block. `d` scales, `m`/`dmin` shift; `qs`, `ql` low bits and `qh`, `hmask` high."""

assert all(layout.itemsize == BLOCKS[kind][1] for kind, layout in LAYOUTS.items())
