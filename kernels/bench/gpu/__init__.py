"""The stages of `gpu_check.py`: what only a GPU can show, each in a process of its own."""
