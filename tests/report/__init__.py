"""Tests of gpuguard.report."""
