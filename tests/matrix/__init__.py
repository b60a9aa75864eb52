"""The main job on nodes of other distributions, with their own systemd, runc, engines and Python."""
