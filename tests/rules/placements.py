"""Random placements of a model, for property tests."""

from collections.abc import Sequence

from hypothesis import strategies as st

from autoplace.architectures.spec import ModelSpec, Role
from autoplace.catalog.engines import ENGINES
from autoplace.placement.placement import Choice, LayerPlacement, Placement
from autoplace.rules.expressible import gpu_expert_types_missing
from autoplace.rules.families import family_of, is_served


def linear_choices(devices: Sequence[str], *, cpu: bool = True) -> st.SearchStrategy[Choice]:
    """Linears on a GPU by Marlin or Torch, or on the host."""
    found = [Choice(device, "KLinearTorch") for device in devices if device != "cpu"]
    found += [
        Choice(device, "KLinearMarlin", bits)
        for device in devices
        if device != "cpu"
        for bits in (4, 8)
    ]
    if cpu:
        found.append(Choice("cpu", "KLinearCPUInfer"))
        if "cpu" in devices:
            found.append(Choice("cpu", "KLinearTorch"))
    return st.sampled_from(found)


def expert_choices(
    devices: Sequence[str], *, engine: str, bits: Sequence[int]
) -> st.SearchStrategy[Choice]:
    """On the host, or by what the engine can load on a GPU."""
    gpus = [device for device in devices if device != "cpu"]
    found = [Choice("cpu", "KExpertsCPU")]
    for operator in ENGINES[engine].gpu_experts:
        for number in bits if operator == "KExpertsMarlin" else (None,):
            found += [Choice(gpu, operator, number) for gpu in gpus]
    return st.sampled_from(found)


@st.composite
def placements(draw: st.DrawFn, spec: ModelSpec, engine: str, num_gpus: int = 3) -> Placement:
    """Any split, also back and forth; builtin also with whole layers on the host."""
    builtin, served = engine == "builtin", is_served(spec, engine=engine)
    if not builtin and not family_of(spec).can_split:
        num_gpus = 1
    gpus = [f"cuda:{index}" for index in range(draw(st.integers(0 if builtin else 1, num_gpus)))]
    devices = ["cpu", *gpus] if builtin else gpus
    num_layers = spec.geometry.num_layers
    cuts = sorted(draw(st.lists(st.integers(0, num_layers), max_size=5)))
    runs = [draw(st.sampled_from(devices)) for _ in range(len(cuts) + 1)]
    with_mlp = {
        m.layer for role in (Role.DENSE_LINEAR, Role.SHARED_LINEAR) for m in spec.of_role(role)
    }
    bits = (4, 8) if builtin else (4,)
    few = [
        (
            draw(linear_choices(devices, cpu=not served)),
            draw(linear_choices(devices, cpu=not served)),
            draw(expert_choices(_expert_devices(spec, engine, devices), engine=engine, bits=bits)),
        )
        for _ in range(3)
    ]
    layers = []
    for index in range(num_layers):
        device = runs[sum(cut <= index for cut in cuts)]
        attention, mlp, experts = draw(st.sampled_from(few))
        if not builtin:
            attention, mlp = _beside(attention, device), _beside(mlp, device)
        layers.append(
            LayerPlacement(
                device,
                attention,
                mlp if index in with_mlp else None,
                experts if index in spec.moe_layers else None,
            )
        )
    return Placement(engine, tuple(layers), draw(linear_choices(devices, cpu=builtin)))


def _expert_devices(spec: ModelSpec, engine: str, devices: Sequence[str]) -> Sequence[str]:
    """Only the host, where the engine cannot bring the file's types to a GPU."""
    experts = spec.of_role(Role.EXPERTS)
    if is_served(spec, engine=engine):
        return ["cpu"]
    if any(gpu_expert_types_missing(engine, spec, module) for module in experts):
        return ["cpu"]
    return devices


def _beside(choice: Choice, device: str) -> Choice:
    """KTransformers' linears are on the layer's GPU, or on the host."""
    return choice if choice.device == "cpu" else Choice(device, choice.operator, choice.num_bits)
