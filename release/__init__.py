"""Artefacts of `make release`: wheel and sdist, the Helm chart, and the images as OCI archives."""
