"""Padding that training processes write over, so that `ps` shows what they run (proc(5), arg_start)."""

PADDING = "." * 2048
"""The last argument of a command that processes are forked from, and the value of the variable below."""
VARIABLE = "DLR_ARGV_PADDING"
"""A variable in the environment of that command, which makes room in it too."""
