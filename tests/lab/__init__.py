"""The test node: a throw-away systemd node, real or simulated, with containers and probers."""
