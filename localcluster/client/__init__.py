"""How the embedded cluster's own parts talk to its API server: as ordinary clients, over HTTP."""
