"""The products of operators on a real GPU, by the Triton kernels; there is no fall-back.

Triton is imported when the first such operator loads: nothing else of autoplace needs it. Tests
run these functions on CPU tensors by Triton's interpreter.
"""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from torch import Tensor

from autoplace.errors import AutoplaceError
from autoplace.models.place import Place
from autoplace.operators.marlin import MarlinWeight

if TYPE_CHECKING:
    from autoplace.kernels.triton.matrices import Matrices

_packed: "WeakKeyDictionary[MarlinWeight, Matrices]" = WeakKeyDictionary()


def on_real_gpu(place: Place) -> bool:
    """True where the place's tensors are in a GPU's memory: not emulated."""
    return place.torch_device.type == "cuda"


def require_triton(what: str) -> None:
    """Raise `AutoplaceError` where Triton cannot be imported; `what` needs it."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise AutoplaceError(
            f"{what} runs on a GPU by Triton kernels, but Triton cannot be imported ({error}); "
            "install it with: pip install triton"
        ) from error


def linear_from_marlin(x: Tensor, weight: MarlinWeight) -> Tensor:
    """[T, in] · packed [out, in]ᵀ → [T, out] in x's dtype."""
    from autoplace.kernels.triton import products

    return products.linear(x.contiguous(), _matrices(weight))


def experts_from_marlin(
    x: Tensor, experts: Tensor, weights: Tensor, packed: tuple[MarlinWeight, ...]
) -> Tensor:
    """[T, D] through experts whose gate, up and down are packed."""
    from autoplace.kernels.triton import products

    gate, up, down = (_matrices(part) for part in packed)
    return products.experts(x.contiguous(), experts, weights, gate, up, down)


def experts_from_dense(
    x: Tensor, experts: Tensor, weights: Tensor, dense: tuple[Tensor, ...]
) -> Tensor:
    """[T, D] through experts whose gate, up and down are plain tensors [E, out, in]."""
    from autoplace.kernels.triton import products
    from autoplace.kernels.triton.matrices import Matrices

    gate, up, down = (Matrices.plain(part) for part in dense)
    return products.experts(x.contiguous(), experts, weights, gate, up, down)


def _matrices(weight: MarlinWeight) -> "Matrices":
    """The kernels' view of a packed weight, made once."""
    from autoplace.kernels.triton.matrices import Matrices

    if weight not in _packed:
        form = weight.form
        shape = (form.out_features, form.in_features)
        _packed[weight] = Matrices.packed(weight.blocks, *shape, form.num_bits)
    return _packed[weight]
