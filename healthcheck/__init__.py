"""Node check: choice of test partners, and diagnosis from the results. Pure functions; the reconcilers do the
I/O."""
