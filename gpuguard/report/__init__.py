"""What gpuguard tells: metrics, journal, HTTP."""
