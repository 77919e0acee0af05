"""`synth`: a GGUF file with a preset's geometry and random weights."""

from autoplace.commands.model_source import preset_quant, write_preset
from autoplace.commands.output import answer_console, print_json
from autoplace.config import SynthConfig
from autoplace.units import format_bytes


def run(config: SynthConfig) -> int:
    paths = write_preset(
        config.model,
        config.out,
        seed=config.seed,
        sparse=config.sparse,
        num_shards=config.num_shards,
    )
    sizes = [path.stat().st_size for path in paths]
    if config.output == "json":
        print_json(
            "synth",
            {
                "model": config.model.name,
                "quant": preset_quant(config.model),
                "sparse": config.sparse,
                "paths": [str(path) for path in paths],
                "n_bytes": sum(sizes),
            },
        )
        return 0
    for path, size in zip(paths, sizes, strict=True):
        hole = ", of which the weights are a hole" if config.sparse else ""
        answer_console().print(f"{path}  {format_bytes(size)}{hole}", soft_wrap=True)
    return 0
