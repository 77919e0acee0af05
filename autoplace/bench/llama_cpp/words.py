"""Whether what runs the trials takes a line of arguments, asked before anything is measured."""

from autoplace.bench.llama_cpp.tools import WHEEL, Tools
from autoplace.errors import AutoplaceError
from autoplace.export.llama_cpp.args import LlamaCppArgs


def refuse_what_it_has_not(args: LlamaCppArgs, tools: Tools, *, source: str) -> None:
    """Raise `AutoplaceError`, which begins with `source`, for an option that it does not know."""
    try:
        if tools.wheel is not None:
            refuse_what_the_wheel_has_not(args)
            return
        program = tools.programs[tools.measurer]
        program.require(args.to_command(program.path))
    except AutoplaceError as error:
        raise AutoplaceError(f"{source}: {error}") from error


def refuse_what_the_wheel_has_not(args: LlamaCppArgs) -> None:
    """The wheel takes a record of settings, no words."""
    for word, given in (("--rpc", args.rpc), ("-dev", args.devices), (args.extra[:1], args.extra)):
        if given:
            name = word if isinstance(word, str) else word[0]
            raise AutoplaceError(
                f"the {WHEEL} wheel cannot be told {name}; engine.binaries=PATH runs llama.cpp's "
                "own programs"
            )
