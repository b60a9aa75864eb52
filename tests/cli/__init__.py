"""Tests of gpuguard.cli."""
