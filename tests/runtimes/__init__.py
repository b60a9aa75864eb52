"""Tests of gpuguard.runtimes."""
