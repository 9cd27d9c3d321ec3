"""Facts about jobs, workers, Pods and nodes, as functions of the objects that were read.

They answer questions of more than one policy: the slots of a job (`slots.py`), the workers in them
(`workers.py`), the end of a Pod and its exit class (`ending.py`, `exit_class.py`), whether silence means a
loss (`silence.py`), whether a statement counts (`trust.py`), the contents of a Pod (`builder.py`). Nothing
here decides the consequences. Of reconcilers/, it imports only runtime, and all others import it.
"""
