"""Tests of gpuguard.guard."""
