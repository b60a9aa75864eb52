"""gpuguard's tests; the folders mirror gpuguard/."""
