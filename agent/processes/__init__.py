"""Training processes as the operating system sees them: their exits, and what they leave behind.

`processes.py` waits on pidfds, so an exit is noticed at once, and ends a round's processes; `scripts.py`
finds those of a shell that are asked to end; `orphans.py` adopts and ends daemons and data loaders. Nothing
here knows of worlds. Above are warm and supervision, and `dlr exec`.
"""
