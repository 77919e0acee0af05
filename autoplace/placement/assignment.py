"""Assignment: what a rule file, good or faulty, means for every module of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool | None | tuple["Value", ...] | Mapping["Value", "Value"]


@dataclass(frozen=True)
class ModuleAssignment:
    """What the first matching rule says of one module."""

    path: str
    device: str
    """`generate_device`, or the engine's default device where no rule or no keyword says it."""
    class_name: str | None = None
    """The class that is injected; None where the module stays as it is (`default`)."""
    operator: str | None = None
    """`generate_op`, the wrapper's default where it is not given; None without a wrapper."""
    kwargs: Mapping[str, Value] = field(default_factory=dict)
    """All keyword arguments of the rule as written."""
    rule: int | None = None
    """Index of the rule that matched; None where none did."""


@dataclass(frozen=True)
class Assignment:
    """Every module that the walk visits. Modules below a `recursive: false` match are absent."""

    engine: str
    modules: Mapping[str, ModuleAssignment]
    """By path, in the order of the walk."""

    @property
    def transfer_map(self) -> Mapping[Value, Value]:
        """Layer index → device the activations move to before that layer, as the file has it."""
        model = self.modules.get("model")
        value = model.kwargs.get("transfer_map") if model else None
        return value if isinstance(value, Mapping) else {}

    def rule_of(self, path: str) -> int | None:
        """The rule that took a module, or ended the walk above it; None where neither is."""
        while path not in self.modules:
            if not path:
                return None
            path = path.rpartition(".")[0]
        return self.modules[path].rule
