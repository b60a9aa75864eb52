"""Measurements: ratios in one run, never asserted by a timed test."""
