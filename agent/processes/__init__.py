"""Training processes in the operating system: their exits, and the processes that they leave behind.

`processes.py` waits on pidfds, so that an exit is noticed at once, and ends a round's processes; `scripts.py`
finds the scripts below a shell that get its signal; `orphans.py` adopts and ends daemons and data loaders.
This package is independent of worlds. Warm, supervision and `dlr exec` are above.
"""
