"""The `xllamacpp` wheel in a process of its own: loads a model, says where it listens, and serves.

Its one argument is a `LlamaCppArgs` as JSON. It is killed when it is not needed any more.
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import xllamacpp

from autoplace.bench.llama_cpp.words import refuse_what_the_wheel_has_not
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.args import LlamaCppArgs

FLASH = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}
VERBOSITY = 4


def main() -> None:
    """Exit with 2 for arguments that the wheel has no place for."""
    values = json.loads(sys.argv[1])
    try:
        params = params_of(_args(values))
    except AutoplaceError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from error
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from error
    print(server.listening_address, flush=True)
    while True:
        time.sleep(3600)


def _args(values: Mapping[str, Any]) -> LlamaCppArgs:
    lists = {
        name: tuple(tuple(item) if isinstance(item, list) else item for item in value)
        for name, value in values.items()
        if isinstance(value, list)
    }
    return LlamaCppArgs(**{**values, **lists})


def params_of(args: LlamaCppArgs) -> Any:
    """The same for the wheel. Raise `AutoplaceError` for what it cannot be told."""
    refuse_what_the_wheel_has_not(args)
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_ctx, params.n_parallel = args.context or 0, args.parallel or 1
    params.n_batch, params.n_ubatch = args.batch, args.ubatch
    params.cpuparams.n_threads = args.threads if args.threads is not None else -1
    params.cpuparams_batch.n_threads = args.batch_threads if args.batch_threads is not None else -1
    params.cache_type_k, params.cache_type_v = map(_type, (args.cache_type_k, args.cache_type_v))
    flash = f"LLAMA_FLASH_ATTN_TYPE_{FLASH[args.flash_attn]}"
    params.flash_attn_type = xllamacpp.llama_flash_attn_type[flash]
    params.no_kv_offload = not args.kv_offload
    params.n_gpu_layers = -1 if args.n_gpu_layers is None else args.n_gpu_layers
    params.main_gpu = args.main_gpu
    params.split_mode = xllamacpp.llama_split_mode[f"LLAMA_SPLIT_MODE_{args.split_mode.upper()}"]
    if args.tensor_split:
        shares = list(args.tensor_split)
        params.tensor_split = shares + [0.0] * (len(params.tensor_split) - len(shares))
    if args.overrides:
        params.tensor_buft_overrides = ",".join(f"{p}={device}" for p, device in args.overrides)
    if not args.mmap:
        params.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE
    params.fit_params = bool(args.fit)
    if args.fit_target_mib is not None:
        params.fit_params_target = [args.fit_target_mib << 20] * len(params.fit_params_target)
    params.cache_ram_mib, params.n_ctx_checkpoints = 0, 0
    params.verbosity, params.port = VERBOSITY, 0
    return params


def _type(name: str) -> Any:
    return xllamacpp.ggml_type[f"GGML_TYPE_{name.upper()}"]


if __name__ == "__main__":
    main()
