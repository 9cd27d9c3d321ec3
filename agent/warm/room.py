"""Padding that training processes write over, so that `ps` shows what they run (proc(5), arg_start)."""

ROOM = "." * 2048
"""The last argument of a command that processes are forked from."""
VARIABLE = "DLR_WARM_ROOM"
"""The same in its environment."""
