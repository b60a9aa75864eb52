"""A simulated node: a private bus, a fake systemd on it, and a tree with cgroup v1 device semantics.

No kernel enforces anything here. What it imitates is pinned by tests/e2e/test_conformance.py, which
runs one script against a real node and this one.
"""
