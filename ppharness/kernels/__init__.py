"""All Triton kernels and their launchers."""
