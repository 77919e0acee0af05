"""Finds the best way to lay a mixture-of-experts model over the GPUs and the CPU of one machine."""

__version__ = "0.1.0"
