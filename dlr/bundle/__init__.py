"""How dlr is shipped: all below the one name `dlr`, so that nothing of ours meets a user's own modules.

In the repository the parts are top-level folders (`agent`, `crds`, …). In the wheel, and in the zip that is
injected into training images, they are `dlr._internal.agent`, `dlr._internal.crds`, …, as pip does with what
it vendors.
"""
