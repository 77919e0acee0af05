"""Kernels: C++ for the CPU (built by `autoplace.native`) and Triton for GPUs."""
