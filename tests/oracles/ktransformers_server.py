"""Runs KTransformers' own rule code without a GPU: a JSON question a line, a JSON answer a line.

This file runs in a process of its own, with the sources of a KTransformers (0.2.1.post1, 0.3 or
0.3.2) and transformers 4.51.3 in front of the import path. It holds none of their code: it stands
in for the compiled modules that rule matching and injection never call, builds the models on the
meta device with 8 experts a layer (rule semantics do not depend on their number) and asks
`gen_optimize_config` and `inject`.

Questions: {"do": "tree", "family": F} and {"do": "assign" | "inject", "family": F, "rules": TEXT}.
"""

import copy
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import types
from contextlib import redirect_stdout
from typing import Any

import torch
import yaml

NUM_EXPERTS = 8


class Anything(types.ModuleType):
    """A module of which every public name exists and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


def stub(*names: str) -> None:
    for name in names:
        module = Anything(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        sys.modules[name] = module


def theirs(module: str) -> Any:
    """A module that is only on this process's import path."""
    return importlib.import_module(module)


def load_ktransformers() -> None:
    """Import what local_chat imports, with the compiled modules stubbed."""
    stub("KTransformersOps", "vLLMMarlin", "cpuinfer_ext", "cpuinfer_ext.moe")
    stub("cpuinfer_ext.linear", "cpuinfer_ext.kvcache", "cpuinfer_ext.mlp", "sched_ext")
    torch.cuda.get_device_capability = lambda *args, **kwargs: (8, 0)
    for family in ("llama", "mixtral", "qwen2_moe"):
        theirs(f"transformers.models.{family}.modeling_{family}")

    stub("flash_attn", "flash_attn.bert_padding")
    for name in ("attention", "experts", "gate", "linear", "models", "RoPE"):
        theirs(f"ktransformers.operators.{name}")
    if importlib.util.find_spec("ktransformers.operators.balance_serve_attention"):
        stub("flashinfer", "flashinfer.norm")
        stub("ktransformers.operators.flashinfer_batch_prefill_wrapper")  # asks for a GPU
        for name in ("balance_serve_attention", "layernorm", "mlp"):
            theirs(f"ktransformers.operators.{name}")


YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
MLA = {
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
    "rope_scaling": YARN,
    "moe_layer_freq": 1,
    "ep_size": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "seq_aux": True,
    "num_experts_per_tok": 4,
    "n_routed_experts": NUM_EXPERTS,
}


def deepseek_v2(**fields: Any) -> Any:
    config = theirs("ktransformers.models.configuration_deepseek").DeepseekV2Config
    model = theirs("ktransformers.models.modeling_deepseek").DeepseekV2ForCausalLM
    return model(config(**{**MLA, **fields}))


def deepseek_v3() -> Any:
    config = theirs("ktransformers.models.configuration_deepseek_v3").DeepseekV3Config
    model = theirs("ktransformers.models.modeling_deepseek_v3").DeepseekV3ForCausalLM
    fields = {
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_shared_experts": 1,
        "q_lora_rank": 1536,
        "first_k_dense_replace": 3,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }
    return model(config(**{**MLA, **fields}))


def v2() -> Any:
    return deepseek_v2(
        vocab_size=102400,
        hidden_size=5120,
        intermediate_size=12288,
        moe_intermediate_size=1536,
        num_hidden_layers=60,
        num_attention_heads=128,
        num_key_value_heads=128,
        n_shared_experts=2,
        q_lora_rank=1536,
        first_k_dense_replace=1,
    )


def v2_lite() -> Any:
    return deepseek_v2(
        vocab_size=102400,
        hidden_size=2048,
        intermediate_size=10944,
        moe_intermediate_size=1408,
        num_hidden_layers=27,
        num_attention_heads=16,
        num_key_value_heads=16,
        n_shared_experts=2,
        q_lora_rank=None,
        first_k_dense_replace=1,
    )


def qwen2_moe() -> Any:
    model = theirs("ktransformers.models.modeling_qwen2_moe").Qwen2MoeForCausalLM
    return model(
        theirs("transformers").Qwen2MoeConfig(
            vocab_size=151936,
            hidden_size=3584,
            intermediate_size=18944,
            moe_intermediate_size=2560,
            shared_expert_intermediate_size=20480,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            num_experts=NUM_EXPERTS,
            num_experts_per_tok=8,
            attn_implementation="eager",
        )
    )


def mixtral() -> Any:
    model = theirs("ktransformers.models.modeling_mixtral").MixtralForCausalLM
    return model(
        theirs("transformers").MixtralConfig(
            num_local_experts=NUM_EXPERTS, num_hidden_layers=32, attn_implementation="eager"
        )
    )


def qwen3_moe() -> Any:
    """As the server builds it (0.3 and later)."""
    config = theirs("ktransformers.models.configuration_qwen3_moe").Qwen3MoeConfig
    model = theirs("ktransformers.models.custom_modeling_qwen3_moe").KQwen3MoeForCausalLM
    return model(
        config(
            vocab_size=151936,
            hidden_size=2048,
            intermediate_size=6144,
            moe_intermediate_size=768,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=128,
            num_experts=NUM_EXPERTS,
            num_experts_per_tok=8,
            attn_implementation="eager",
        )
    )


FAMILIES = {
    "deepseek-v2": v2,
    "deepseek-v2-lite": v2_lite,
    "deepseek-v3": deepseek_v3,
    "qwen2-57b-a14b": qwen2_moe,
    "mixtral-8x7b": mixtral,
    "qwen3-30b-a3b": qwen3_moe,
}
_built: dict[str, Any] = {}


def model_of(family: str) -> Any:
    if family not in _built:
        with torch.device("meta"):
            _built[family] = FAMILIES[family]()
    return _built[family]


def class_path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def tree(family: str) -> dict[str, Any]:
    """Module path → its class and that class's bases, nearest first."""
    return {
        path: [class_path(cls) for cls in type(module).__mro__ if cls is not object]
        for path, module in model_of(family).named_modules()
    }


def assign(family: str, rules: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    rule_list = yaml.load(rules, Loader=yaml.FullLoader)
    theirs("ktransformers.optimize.optimize").gen_optimize_config(
        model_of(family), result, rule_list, default_device="cuda:0"
    )
    return result


class ExpertShapes(dict):  # type: ignore[type-arg]
    """Stands for the GGUF's tensor table: GPU experts read only shapes."""

    def __missing__(self, key: str) -> dict[str, Any]:
        return {"shape": [2048, 1408, NUM_EXPERTS], "ggml_type": 12}


class FakeLoader:
    """What operators' constructors ask of the GGUF loader."""

    def __init__(self) -> None:
        self.tensor_device_map: dict[str, Any] = {}
        self.tensor_file_map: dict[str, Any] = {}
        self.tensor_info = ExpertShapes()

    def has_tensor(self, name: str) -> bool:
        return False


def operators_of(module: Any) -> dict[str, Any]:
    """What a module became: its class, and the operator and device that a wrapper decodes with.

    An injected module keeps attributes that it does not know on the module that it wraps.
    """
    found = {"class": class_path(type(module))}
    original = module.__dict__.get("_modules", {}).get("orig_module")
    own = {**(original.__dict__ if original is not None else {}), **module.__dict__}
    if "generate_device" in own:
        found["device"] = own["generate_device"]
    for name in ("generate_linear", "generate_experts"):
        operator = own.get(name)
        if operator is not None:
            found["operator"] = type(operator).__name__
            found["device"] = str(operator.device)
            for option in ("num_bits", "out_device"):
                if hasattr(operator, option):
                    found[option] = getattr(operator, option)
    for option in ("transfer_map", "per_layer_prefill_intput_threshold"):
        if option in own:
            found[option] = own[option]
    return found


def walk(module: Any, prefix: str, result: dict[str, Any]) -> None:
    """Visit the injected tree under the original names."""
    original = module.__dict__.get("_modules", {}).get("orig_module")
    children = original if original is not None else module
    for name, child in children._modules.items():
        if child is not None:
            result[prefix + name] = operators_of(child)
            walk(child, f"{prefix}{name}.", result)


def inject(family: str, rules: str) -> dict[str, Any]:
    optimize = theirs("ktransformers.optimize.optimize")
    config = assign(family, rules)
    model = model_of(family)
    model_config = optimize.translate_model_config(copy.deepcopy(model.config))
    with torch.device("meta"), redirect_stdout(io.StringIO()):
        optimize.inject(model, config, model_config, FakeLoader())
    injected: dict[str, Any] = {}
    walk(model, "", injected)
    return {"config": config, "injected": injected}


def answer(question: dict[str, Any]) -> Any:
    if question["do"] == "tree":
        return tree(question["family"])
    if question["do"] == "assign":
        return assign(question["family"], question["rules"])
    model_of(question["family"])
    return in_a_fork(lambda: inject(question["family"], question["rules"]))


def in_a_fork(work: Any) -> Any:
    """Injection changes the model: let it change a copy of this process."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        with os.fdopen(write_end, "w") as pipe:
            pipe.write(json.dumps(attempt(work), default=str))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        result = json.loads(pipe.read())
    os.waitpid(child, 0)
    if "error" in result:
        raise RuntimeError(result["error"])
    return result["answer"]


def plain(value: Any) -> Any:
    """JSON has no integer keys: a mapping that has any becomes {"pairs": [[key, value], …]}."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: plain(item) for key, item in value.items()}
        return {"pairs": [[key, plain(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def attempt(work: Any) -> dict[str, Any]:
    """Their exceptions are answers: what a rule file does there."""
    try:
        return {"answer": plain(work())}
    except Exception as error:  # whatever theirs raises is what is asked for
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.bfloat16)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    load_ktransformers()
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        question = json.loads(line)
        reply = attempt(lambda question=question: answer(question))
        replies.write(json.dumps(reply, default=str) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
