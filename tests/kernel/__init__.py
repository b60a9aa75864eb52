"""Tests of gpuguard.kernel."""
