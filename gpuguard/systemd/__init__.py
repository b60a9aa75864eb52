"""systemd: the bus, the manager's verbs, its signals, sd_notify. Wire errors become ours here."""
