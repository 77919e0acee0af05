"""The matrices of loaded modules as the kernels for one token read them, in host memory."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from autoplace.models.backend import DTYPES
from autoplace.models.basic import Linear, RouterGate
from autoplace.native import Weights
from autoplace.native_decode import Matrix, Mlp
from autoplace.operators.blocks import HostBlocks
from autoplace.operators.experts_cpu import KExpertsCPU
from autoplace.operators.experts_marlin import KExpertsMarlin
from autoplace.operators.experts_torch import KExpertsTorch
from autoplace.operators.linear_cpuinfer import KLinearCPUInfer
from autoplace.operators.linear_marlin import KLinearMarlin
from autoplace.operators.linear_torch import KLinearTorch
from autoplace.operators.marlin import MarlinWeight
from autoplace.operators.wrappers import KTransformersExperts, KTransformersLinear

NONE = Matrix()
"""No matrix at all, where a description has room for one."""

Weight = Tensor | HostBlocks | MarlinWeight


def matrix_of(module: nn.Module) -> Matrix | None:
    """A linear, plain or of any operator, or a router; None where it is not in host memory."""
    if isinstance(module, KTransformersLinear):
        module = module.operator
    match module:
        case Linear() | KLinearTorch():
            return _with_bias(module.weight, module.bias)
        case RouterGate():
            return _with_bias(module.weight, None)
        case KLinearCPUInfer():
            return _with_bias(module.blocks, module.bias)
        case KLinearMarlin():
            return _with_bias(module.weight, module.bias)
    return None


def experts_of(module: nn.Module) -> Mlp | None:
    """The stacks of a layer's routed experts; None where they are not whole in host memory."""
    if not isinstance(module, KTransformersExperts):
        return None
    operator = module.operator
    if not isinstance(operator, KExpertsCPU | KExpertsMarlin | KExpertsTorch):
        return None
    parts = [_matrix(weight) for weight in operator.weights]
    gate, up, down = parts
    return None if gate is None or up is None or down is None else Mlp(gate, up, down)


def mapped_blocks(root: nn.Module) -> list[NDArray[np.uint8]]:
    """Every tensor below a module that its operator reads from the mapped file."""
    found: list[HostBlocks] = []
    for module in root.modules():
        match module:
            case KLinearCPUInfer():
                found.append(module.blocks)
            case KExpertsCPU():
                found.extend(module.weights)
    return [data.numpy() for blocks in found if not blocks.interleaved for data in blocks.data]


def _with_bias(weight: Weight, bias: Tensor | None) -> Matrix | None:
    matrix = _matrix(weight)
    if matrix is not None and bias is not None:
        matrix.bias, matrix.bias_dtype = bias.data_ptr(), DTYPES[bias.dtype]
    return matrix


def _matrix(weight: Weight) -> Matrix | None:
    """[N, K], or of a stack [E, N, K] its first matrix."""
    match weight:
        case HostBlocks():
            if len(weight.data) > 1:
                return None
            return Matrix.of(weight.weights, *weight.shape[-2:])
        case MarlinWeight():
            if weight.blocks.device.type != "cpu":
                return None
            return Matrix.of(weight.weights, weight.form.out_features, weight.form.in_features)
    if weight.device.type != "cpu":
        return None
    plain = Weights(weight.data_ptr(), DTYPES[weight.dtype])
    return Matrix.of(plain, weight.shape[-2], weight.shape[-1])
