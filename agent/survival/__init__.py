"""How training processes live on when their peers die: agent and process agree by a socket (docs/recovery.md)."""
