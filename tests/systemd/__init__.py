"""Tests of gpuguard.systemd."""
