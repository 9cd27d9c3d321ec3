"""Packaging of dlr below the one name `dlr`, so that it cannot collide with a user's modules.

In the repository the parts are top-level folders (`agent`, `crds`, …). In the wheel, and in the zip that is
injected into training images, they are `dlr._internal.agent`, `dlr._internal.crds`, …, like pip's vendored
packages.
"""
