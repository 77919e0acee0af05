"""llama.cpp: what its arguments can say, what they mean for a file's tensors, what that takes."""

from autoplace.export.llama_cpp.args import LlamaCppArgs
from autoplace.export.llama_cpp.parse import parse_args

__all__ = ["LlamaCppArgs", "parse_args"]
