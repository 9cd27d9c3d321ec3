"""Two controllers: one acts, the other takes over within the lease time, and no round ever has two worlds."""
