"""What runs on a node: probes, each a process of its own, so that a crash or a hang of it is a result.

They run inside training images, on Python 3.10 and newer, and import only the standard library, torch and
pynvml.
"""
