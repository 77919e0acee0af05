"""llama.cpp's words that decide placement and speed: every spelling, and what it stands for.

Source: common/arg.cpp of b9993, and llama-bench's own parser (`bench` spellings).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from autoplace.export.llama_cpp.other_options import word_set


@dataclass(frozen=True)
class Option:
    """One setting of `LlamaCppArgs`, or an alias for overrides, by its spellings."""

    name: str
    """The field of `LlamaCppArgs`, or `cpu_moe`, `n_cpu_moe`."""
    spellings: tuple[str, ...]
    negatives: tuple[str, ...] = ()
    """Spellings of a switch that turn it off."""
    env: str = ""
    is_switch: bool = False
    adds_up: bool = False
    """Given twice, both count."""


OPTIONS = (
    Option("model", ("-m", "--model"), env="LLAMA_ARG_MODEL"),
    Option(
        "n_gpu_layers", ("-ngl", "--gpu-layers", "--n-gpu-layers"), env="LLAMA_ARG_N_GPU_LAYERS"
    ),
    Option("tensor_split", ("-ts", "--tensor-split"), env="LLAMA_ARG_TENSOR_SPLIT"),
    Option(
        "overrides", ("-ot", "--override-tensor"), env="LLAMA_ARG_OVERRIDE_TENSOR", adds_up=True
    ),
    Option("cpu_moe", ("-cmoe", "--cpu-moe"), env="LLAMA_ARG_CPU_MOE", is_switch=True),
    Option("n_cpu_moe", ("-ncmoe", "--n-cpu-moe"), env="LLAMA_ARG_N_CPU_MOE"),
    Option("cache_type_k", ("-ctk", "--cache-type-k"), env="LLAMA_ARG_CACHE_TYPE_K"),
    Option("cache_type_v", ("-ctv", "--cache-type-v"), env="LLAMA_ARG_CACHE_TYPE_V"),
    Option("batch", ("-b", "--batch-size"), env="LLAMA_ARG_BATCH"),
    Option("ubatch", ("-ub", "--ubatch-size"), env="LLAMA_ARG_UBATCH"),
    Option("threads", ("-t", "--threads"), env="LLAMA_ARG_THREADS"),
    Option("threads_batch", ("-tb", "--threads-batch")),
    Option("flash_attn", ("-fa", "--flash-attn"), env="LLAMA_ARG_FLASH_ATTN"),
    Option("context", ("-c", "--ctx-size"), env="LLAMA_ARG_CTX_SIZE"),
    Option("main_gpu", ("-mg", "--main-gpu"), env="LLAMA_ARG_MAIN_GPU"),
    Option("split_mode", ("-sm", "--split-mode"), env="LLAMA_ARG_SPLIT_MODE"),
    Option("mmap", ("--mmap",), ("--no-mmap",), env="LLAMA_ARG_MMAP", is_switch=True),
    Option(
        "kv_offload",
        ("-kvo", "--kv-offload"),
        ("-nkvo", "--no-kv-offload"),
        env="LLAMA_ARG_KV_OFFLOAD",
        is_switch=True,
    ),
    Option("rpc", ("--rpc",), env="LLAMA_ARG_RPC", adds_up=True),
    Option("devices", ("-dev", "--device"), env="LLAMA_ARG_DEVICE"),
    Option("fit", ("-fit", "--fit"), env="LLAMA_ARG_FIT"),
    Option("fit_target_mib", ("-fitt", "--fit-target"), env="LLAMA_ARG_FIT_TARGET"),
    Option("parallel", ("-np", "--parallel"), env="LLAMA_ARG_N_PARALLEL"),
)

BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}

COMMON_WORDS: Mapping[str, tuple[Option, bool]] = {
    word: (option, word in option.spellings)
    for option in OPTIONS
    for word in (*option.spellings, *option.negatives)
}
"""Spelling → option, and whether it turns it on."""

ENVIRONMENT: Mapping[str, tuple[Option, bool]] = {
    **{option.env: (option, True) for option in OPTIONS if option.env},
    **{
        option.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_"): (option, False)
        for option in OPTIONS
        if option.env and option.negatives
    },
}
"""Variable → option; `LLAMA_ARG_NO_MMAP` of whatever value turns it off."""

BENCH_WORDS: Mapping[str, tuple[Option, bool]] = {
    **{word: (option, True) for word, (option, on) in COMMON_WORDS.items() if on},
    "-mmp": (BY_NAME["mmap"], True),
    "-nkvo": (BY_NAME["kv_offload"], False),
    "--no-kv-offload": (BY_NAME["kv_offload"], False),
    "-rpc": (BY_NAME["rpc"], True),
}
"""llama-bench's: its switches take 0 or 1."""

NOT_IN_BENCH = word_set(
    "--gpu-layers -cmoe --cpu-moe -tb --threads-batch -c --ctx-size -kvo --kv-offload -fit --fit "
    "-np --parallel"
)
BENCH_SWITCHES = word_set("-v --verbose --progress --no-warmup --offline")
BENCH_VALUED = word_set(
    "--numa -r --repetitions --prio --delay -o --output -oe --output-err -fitc --fit-ctx -hf -hfr "
    "--hf-repo -hff --hf-file -hft --hf-token -p --n-prompt -n --n-gen -pg -d --n-depth -C "
    "--cpu-mask --cpu-strict --poll -dio --direct-io -embd --embeddings -nopo --no-op-offload "
    "--no-host"
)

BENCH_OF_EXTRA: Mapping[str, tuple[str, ...]] = {
    "--no-op-offload": ("-nopo", "1"),
    "--no-host": ("--no-host", "1"),
    "--direct-io": ("-dio", "1"),
    "-dio": ("-dio", "1"),
    "--no-warmup": ("--no-warmup",),
    "-v": ("-v",),
    "--verbose": ("-v",),
    "--progress": ("--progress",),
}
"""Switches of other programs in llama-bench's words."""
BENCH_SAME = word_set("-C --cpu-mask --cpu-strict --poll --prio --numa -fitc --fit-ctx")
"""Valued words that are the same in llama-bench."""
