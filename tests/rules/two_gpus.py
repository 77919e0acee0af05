"""DeepSeek-V2 on two GPUs as people write it by hand, and what the checks say of its mutations."""

from collections.abc import Callable

from autoplace.hardware.machine import Device, Machine
from autoplace.rules.finding import Finding
from autoplace.rules.lint import examine
from autoplace.rules.read import read_rules
from tests.rules.specs import spec

GIB = 1024**3
LATER = range(30, 60)
"""Layers of the second GPU."""


def gpu(index: int, capability: tuple[int, int] = (8, 6)) -> Device:
    return Device(f"cuda:{index}", "RTX", 48 * GIB, 0, 7e11, 1e14, capability)


CPU = Device("cpu", "EPYC", 192 * GIB, 0, 2e11, 1e12)
TWO_GPUS = Machine("2xa6000", (CPU, gpu(0), gpu(1)))
FIRST, SECOND = "|".join(map(str, range(30))), "|".join(map(str, range(30, 60)))


def entry(
    name: str, cls: str, replace_class: str, device: str, *more: str, recursive: str = ""
) -> str:
    lines = ["- match:", f"    name: {name}"]
    lines += [f"    class: {cls}"] if cls else []
    lines += ["  replace:", f"    class: {replace_class}", "    kwargs:"]
    lines += [f"      generate_device: {device}", *(f"      {option}" for option in more)]
    lines += [f"  recursive: {recursive}"] if recursive else []
    return "\n".join(lines) + "\n"


def v2_on_two_gpus() -> str:
    """DeepSeek-V2 as people write it by hand: 30 layers a GPU, all experts on the host."""
    theirs, ours = "ktransformers.models.modeling_deepseek.DeepseekV2", "ktransformers.operators."
    both = ((FIRST, "cuda:0"), (SECOND, "cuda:1"))

    def each(rest: str, cls: str, replace_class: str, *more: str, recursive: str = "") -> str:
        return "".join(
            entry(
                rf"^model\.layers\.(?:{layers})\.{rest}",
                cls,
                replace_class,
                "cpu" if "Experts" in replace_class else device,
                f"prefill_device: {device}",
                *(option.format(device=device) for option in more),
                recursive=recursive,
            )
            for layers, device in both
        )

    return "".join(
        [
            entry(r"^model\.embed_tokens$", "", "default", "cpu", "prefill_device: cpu"),
            each("", f"{theirs}YarnRotaryEmbedding", f"{ours}RoPE.YarnRotaryEmbedding"),
            each(
                r"(?!self_attn\.kv_b_proj$).*$",
                "torch.nn.Linear",
                f"{ours}linear.KTransformersLinear",
                "generate_op: KLinearMarlin",
                "prefill_op: KLinearTorch",
            ),
            each("mlp$", f"{theirs}MoE", f"{ours}experts.KDeepseekV2MoE"),
            each(
                r"mlp\.experts$",
                "",
                f"{ours}experts.KTransformersExperts",
                "generate_op: KExpertsCPU",
                "prefill_op: KExpertsTorch",
                "out_device: {device}",
                recursive="false",
            ),
            each("self_attn$", "", f"{ours}attention.KDeepseekV2Attention"),
            "- match: {name: ^model$}\n"
            f"  replace:\n    class: {ours}models.KDeepseekV2Model\n    kwargs:\n"
            "      per_layer_prefill_intput_threshold: 0\n"
            "      transfer_map:\n        30: cuda:1\n",
            entry(
                rf"^model\.layers\.(?:{FIRST})\.", "", "default", "cuda:0", "prefill_device: cuda:0"
            ),
            entry(
                rf"(^model\.layers\.(?:{SECOND})\.)|(^model\.norm)|(^lm_head)",
                "",
                "default",
                "cuda:1",
                "prefill_device: cuda:1",
            ),
        ]
    )


def check(text: str, *, engine: str = "builtin", machine: Machine = TWO_GPUS) -> list[Finding]:
    read = read_rules(text, source="mine.yaml")
    return list(examine(read, spec("deepseek-v2"), engine=engine, machine=machine).findings)


def sub(old: str, new: str) -> Callable[[str], str]:
    """A mutation of the good file; it must change something."""

    def mutate(text: str) -> str:
        assert old in text, old
        return text.replace(old, new)

    return mutate


def only(text: str, code: str, *, engine: str = "ktransformers-0.3") -> Finding:
    """The one finding; none of its consequences may be a finding of its own."""
    (finding,) = check(text, engine=engine)
    assert finding.code == code, finding
    return finding
