"""What each command's --help tells beside its options: exit codes, and examples where they help."""

from __future__ import annotations

CONTAINER = "id (12 digits do), name, in Kubernetes also NAMESPACE/POD/NAME, or scope"

EVERY = """\
Run them as root on the node. COMMAND --help has exit codes and examples.
64: a usage error; 74: the answer cannot be written; 78: a bad configuration."""

OF = {
    "run": """\
exit codes: 0 after SIGTERM, 77 without the privileges it needs, 78 with a bad
configuration""",
    "status": """\
The worst is shown first. It needs no running daemon.

exit codes: 0, 1 when the node cannot be looked at

examples:
  gpuguard status --all
  gpuguard status --json | jq '.containers[] | select(.state == "lost")'""",
    "explain": """\
exit codes: 0, 1 when the node cannot be looked at, 4 when no container, or
more than one, goes by that name

examples:
  gpuguard explain trainer
  gpuguard explain 3f2a9c81b2d4
  gpuguard explain ml/train-0/main --json""",
    "doctor": """\
exit codes: 0 all is well, 1 there is advice, 2 something is broken""",
    "check": """\
exit codes, as Nagios and its kin read them: 0 all are protected, 1 some are at
risk or nobody guards them, 2 some have lost devices or are stale, 3 cannot tell""",
    "repair": """\
A running daemon does it, else this command. Nothing is taken from anybody.

exit codes: 0 nothing is left to do, 1 something could not be repaired, 4 when
no container, or more than one, goes by a name: then nothing is done

examples:
  gpuguard repair --dry-run
  gpuguard repair trainer ml/train-0/main""",
    "release": """\
The device itself is not taken away: do that after it.

exit codes: 0, 1 when it cannot be done, 4 when there is no such container or
device

examples:
  gpuguard release trainer /dev/nvidia0
  gpuguard release ml/train-0/main 'c 195:0' 'c 195:255'""",
    "config": """\
exit codes: 0, 78 with a bad configuration

examples:
  gpuguard config check
  gpuguard config show --config ./new.toml""",
}
