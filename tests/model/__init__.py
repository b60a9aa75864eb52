"""Tests of gpuguard.model."""
