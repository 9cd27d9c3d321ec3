"""Where each kind the suite touches is served."""

from __future__ import annotations

import os

from controller.resources import Resource

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""Workers of one run have a kind of their own each, so that they can share an API server."""


BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
SELF_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
WIDGETS = Resource("conformance.dlr.dev", "v1alpha1", f"widgets{WORKER}", f"Widget{WORKER}")
WG = f"wg{WORKER}"
"""The short name of the suite's own kind."""
