"""GPU kernels in Triton: packed and plain products, routed experts, GGUF dequantisation.

`*_kernels.py` hold what runs on the GPU and know nothing of torch; the other modules launch it on
torch tensors. Nothing here waits for the GPU or reads from it, so that a CUDA graph can hold it.
With `TRITON_INTERPRET=1`, set before the first import, everything runs on CPU tensors as well.
"""
