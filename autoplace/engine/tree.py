"""Builds the torch module tree with Hugging Face's paths, one loaded module after the other."""

from collections.abc import Callable, Iterable

from torch import nn

from autoplace.architectures.spec import Module
from autoplace.models.basic import Container

Make = Callable[[Module], nn.Module]


def build_tree(modules: Iterable[Module], make: Make) -> nn.Module:
    """A root whose submodules have the modules' paths; `make` is called in their order.

    Parents come before their children, as in `ModelSpec.modules`. Nodes that the list leaves out
    become containers.
    """
    root: nn.Module = Container()
    for module in modules:
        if module.path:
            parent, name = _parent_of(root, module.path)
            parent.add_module(name, make(module))
    return root


def _parent_of(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    *above, name = path.split(".")
    node = root
    for part in above:
        child = node._modules.get(part)
        if child is None:
            child = Container()
            node.add_module(part, child)
        node = child
    return node, name
