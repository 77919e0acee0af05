"""The one search space of a model on a machine: what can be chosen, as flat parameters.

Free of torch and optuna. The set of parameters is fixed: "no layer" and "no expert" are values.
Every vector of values is a placement; several vectors may stand for the same one.
"""

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from autoplace.architectures.spec import ModelSpec
from autoplace.catalog import llama_cpp
from autoplace.errors import AutoplaceError
from autoplace.hardware.machine import Device, Machine
from autoplace.placement.expert_layers import expert_orders, spread_experts
from autoplace.placement.options import (
    FLASH_ATTENTION,
    GROUPS,
    batch_choices,
    choice_name,
    chunk_choices,
    layers_with,
    llama_cpp_settings,
    operator_choices,
    thread_choices,
)
from autoplace.placement.placement import PLACEMENT_VERSION, Choice, LayerPlacement, Placement
from autoplace.placement.settings import RunSettings
from autoplace.workload import Workload

Value = int | str
SPACE_VERSION = 1


@dataclass(frozen=True)
class Parameter:
    """One dimension. An `int` takes low..high, both included; a `categorical` one of `choices`."""

    name: str
    kind: Literal["int", "categorical"]
    low: int = 0
    high: int = 0
    choices: tuple[Value, ...] = ()

    @property
    def size(self) -> int:
        return self.high - self.low + 1 if self.kind == "int" else len(self.choices)

    @property
    def default(self) -> Value:
        return self.low if self.kind == "int" else self.choices[0]

    def contains(self, value: Value) -> bool:
        if self.kind == "int":
            return isinstance(value, int) and self.low <= value <= self.high
        return value in self.choices

    def draw(self, rng: random.Random) -> Value:
        return rng.randint(self.low, self.high) if self.kind == "int" else rng.choice(self.choices)


@dataclass(frozen=True)
class SearchSpace:
    """Parameters, and both ways between their values and a placement with its settings."""

    spec: ModelSpec
    machine: Machine
    workload: Workload
    engine: str
    kv_types: tuple[str, ...] = ("f16",)

    @property
    def layer_devices(self) -> tuple[Device, ...]:
        """Where layers may lie: the GPUs, or the host where there is none. llama.cpp can keep
        leading layers on the host beside GPUs."""
        if self.engine == llama_cpp.ENGINE:
            return self.machine.devices
        return self.machine.gpus or self.machine.devices

    @property
    def head_follows(self) -> bool:
        """Whether the output is where the last layer is: llama.cpp has no word for an output that
        is the embedding."""
        return self.engine == llama_cpp.ENGINE and self.spec.geometry.tied_embeddings

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """All dimensions in a fixed order; those that leave no choice are left out."""
        return tuple(parameter for parameter in self._all_parameters if parameter.size > 1)

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self.parameters)

    @cached_property
    def hash(self) -> str:
        """Changes when a parameter, or the meaning of one, does."""
        parts: list[object] = [SPACE_VERSION, PLACEMENT_VERSION, self.engine]
        parts += [[p.name, p.kind, p.low, p.high, p.choices] for p in self._all_parameters]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @property
    def default_settings(self) -> RunSettings:
        """All cores, prompts in one chunk of at most 512 tokens or the nearest that is offered."""
        chunks = chunk_choices(self.workload)
        chunk = max((c for c in chunks if c <= 512), default=chunks[0])
        own = llama_cpp_settings(chunk) if self.engine == llama_cpp.ENGINE else {}
        return RunSettings(self.machine.num_cores, chunk, self.kv_types[0], **own)

    def head_on(self, device: str) -> str:
        """The value of `lm_head` that puts it on a device, with the usual operator there."""
        return next(name for name, choice in self._head_choices.items() if choice.device == device)

    def draw(self, rng: random.Random) -> dict[str, Value]:
        """Uniform over parameter vectors, not over placements."""
        return {parameter.name: parameter.draw(rng) for parameter in self.parameters}

    def mutate(self, values: Mapping[str, Value], rng: random.Random) -> dict[str, Value]:
        """The same vector with one parameter drawn anew: perhaps the same placement."""
        changed = rng.choice(self.parameters)
        return {**values, changed.name: changed.draw(rng)}

    def contains(self, values: Mapping[str, Value]) -> bool:
        return all(p.name in values and p.contains(values[p.name]) for p in self.parameters)

    def decode(self, values: Mapping[str, Value]) -> tuple[Placement, RunSettings]:
        """The placement and settings that the values stand for. Absent parameters are defaults."""
        full = {p.name: values.get(p.name, p.default) for p in self._all_parameters}
        devices = self._layer_devices(full)
        experts = self._expert_devices(full, devices)
        layers = tuple(
            LayerPlacement(
                device=device,
                attention=self._choice(full, device, "attention"),
                mlp=self._choice(full, device, "mlp") if layer in self._mlp_layers else None,
                experts=self._choice(full, experts[layer], "experts") if layer in experts else None,
            )
            for layer, device in enumerate(devices)
        )
        return Placement(self.engine, layers, self._head(full, devices[-1])), self._settings(full)

    def _head(self, values: Mapping[str, Value], last: str) -> Choice:
        """The output; `last` is the last layer's device."""
        if self.head_follows:
            return next(choice for choice in self._head_choices.values() if choice.device == last)
        return self._head_choices[str(values["lm_head"])]

    def _settings(self, values: Mapping[str, Value]) -> RunSettings:
        kv_type, chunk = str(values["kv_type"]), int(values["prefill_chunk"])
        own: Mapping[str, Any] = {}
        if self.engine == llama_cpp.ENGINE:
            flash = str(values["flash_attn"])
            own = llama_cpp_settings(chunk, int(values["batch"]), flash, kv_type)
        return RunSettings(int(values["num_threads"]), chunk, kv_type, **own)

    def encode(self, placement: Placement, settings: RunSettings) -> dict[str, Value] | None:
        """Values that decode to just this placement and these settings; None if there are none."""
        if self.spec.geometry.num_layers != len(placement.layers):
            return None
        known = self._encode_layers(placement) | {
            "lm_head": choice_name(placement.lm_head, with_device=True),
            "num_threads": settings.num_threads,
            "prefill_chunk": settings.prefill_chunk,
            "kv_type": settings.kv_type,
            **self._encode_llama_cpp(settings),
        }
        for order in self._expert_orders:
            known["experts_order"] = order
            values = {p.name: known.get(p.name, p.default) for p in self.parameters}
            if self.contains(values) and self.decode(values) == (placement, settings):
                return values
        return None

    def _encode_llama_cpp(self, settings: RunSettings) -> dict[str, Value]:
        """A batch that the chunk was raised to stands for any that is no larger."""
        if settings.batch is None or settings.flash_attn is None:
            return {}
        same = [
            batch
            for batch in batch_choices(self.workload)
            if max(batch, settings.prefill_chunk) == settings.batch
        ]
        return {"batch": (*same, settings.batch)[0], "flash_attn": settings.flash_attn}

    # Building the parameters.

    @cached_property
    def _all_parameters(self) -> tuple[Parameter, ...]:
        num_layers = self.spec.geometry.num_layers
        num_moe = len(self.spec.moe_layers)
        if not self._head_choices:
            raise AutoplaceError(
                f"engine {self.engine} runs no rule files, so it has no search space"
            )
        return (
            *(_int(f"{d.name}.end_layer", num_layers) for d in self.layer_devices[:-1]),
            *(_int(f"{d.name}.num_experts", num_moe) for d in self._expert_gpus),
            *(
                [_categorical("experts_order", tuple(self._expert_orders))]
                if self._expert_gpus
                else []
            ),
            *(_categorical(name, tuple(choices)) for name, choices in self._choices.items()),
            *([] if self.head_follows else [_categorical("lm_head", tuple(self._head_choices))]),
            _categorical("num_threads", thread_choices(self.machine)),
            _categorical("prefill_chunk", chunk_choices(self.workload)),
            _categorical("kv_type", self.kv_types),
            *self._llama_cpp_parameters,
        )

    @property
    def _llama_cpp_parameters(self) -> tuple[Parameter, ...]:
        if self.engine != llama_cpp.ENGINE:
            return ()
        return (
            _categorical("batch", batch_choices(self.workload)),
            _categorical("flash_attn", FLASH_ATTENTION),
        )

    @cached_property
    def _choices(self) -> Mapping[str, Mapping[str, Choice]]:
        """`cuda:0.attention` → operator name → choice, for every device and group of modules."""
        choices = {
            f"{device.name}.{group}": {
                choice_name(choice): choice
                for choice in operator_choices(self.spec, device, GROUPS[group], engine=self.engine)
            }
            for group in ("attention", "mlp", "experts")
            for device in (self.machine.devices if group == "experts" else self.layer_devices)
            if layers_with(self.spec, GROUPS[group])
        }
        return {name: offered for name, offered in choices.items() if offered}

    @cached_property
    def _expert_gpus(self) -> tuple[Device, ...]:
        """GPUs that the engine has an operator for experts on; none for a dense model."""
        return tuple(gpu for gpu in self.machine.gpus if f"{gpu.name}.experts" in self._choices)

    @cached_property
    def _head_choices(self) -> Mapping[str, Choice]:
        return {
            choice_name(choice, with_device=True): choice
            for device in (*self.machine.gpus, self.machine.host)
            for choice in operator_choices(self.spec, device, GROUPS["lm_head"], engine=self.engine)
        }

    @cached_property
    def _expert_orders(self) -> Mapping[str, tuple[int, ...]]:
        return expert_orders(self.spec)

    @cached_property
    def _mlp_layers(self) -> frozenset[int]:
        return layers_with(self.spec, GROUPS["mlp"])

    # Between values and layers.

    def _choice(self, values: Mapping[str, Value], device: str, group: str) -> Choice:
        name = f"{device}.{group}"
        return self._choices[name][str(values[name])]

    def _layer_devices(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Device of each layer. The ends are sorted first, so that every vector is a split."""
        num_layers = self.spec.geometry.num_layers
        ends = sorted(int(values[f"{d.name}.end_layer"]) for d in self.layer_devices[:-1])
        starts = (0, *ends, num_layers)
        return tuple(
            device.name
            for device, start, end in zip(self.layer_devices, starts, starts[1:], strict=False)
            for _ in range(start, end)
        )

    def _expert_devices(
        self, values: Mapping[str, Value], devices: tuple[str, ...]
    ) -> Mapping[int, str]:
        if not self._expert_gpus:
            return dict.fromkeys(self.spec.moe_layers, self.machine.host.name)
        return spread_experts(
            self._expert_orders[str(values["experts_order"])],
            {gpu.name: int(values[f"{gpu.name}.num_experts"]) for gpu in self._expert_gpus},
            layer_devices=devices,
            host=self.machine.host.name,
        )

    def _encode_layers(self, placement: Placement) -> dict[str, Value]:
        values: dict[str, Value] = {}
        end = 0
        for device in self.layer_devices:
            end += sum(layer.device == device.name for layer in placement.layers)
            values[f"{device.name}.end_layer"] = end
        for gpu in self.machine.gpus:
            values[f"{gpu.name}.num_experts"] = sum(
                layer.experts is not None and layer.experts.device == gpu.name
                for layer in placement.layers
            )
        for layer in placement.layers:
            for group in ("attention", "mlp", "experts"):
                choice = getattr(layer, group)
                if choice is not None:
                    values[f"{choice.device}.{group}"] = choice_name(choice)
        return values


def _int(name: str, high: int) -> Parameter:
    return Parameter(name, "int", 0, high)


def _categorical(name: str, choices: tuple[Value, ...]) -> Parameter:
    assert choices, name
    return Parameter(name, "categorical", choices=choices)
