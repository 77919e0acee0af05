"""llama.cpp: what its arguments can say, what they mean for a file's tensors, what that takes."""

from autoplace.export.llama_cpp.args import LlamaCppArgs

__all__ = ["LlamaCppArgs"]
