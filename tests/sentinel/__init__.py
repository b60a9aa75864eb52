"""Tests of the small process that heals at the write."""
