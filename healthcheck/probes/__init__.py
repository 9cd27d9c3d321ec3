"""Probes, which run on a node, each in its own process, so that its crash or hang is a result.

They run inside training images, on Python 3.10 and newer, and import only the standard library, torch and
pynvml.
"""
