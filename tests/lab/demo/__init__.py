"""`make demo`: the fault and its cure on a throw-away node, in a form to watch."""
