"""Facts about jobs, workers, Pods and nodes, as functions of the objects that were read.

They answer questions that more than one policy asks: which slots a job has (`slots.py`), which workers fill
them (`workers.py`), how a Pod ended and in which class (`ending.py`, `exit_class.py`), whether silence means
a loss (`silence.py`), whose statements count (`trust.py`), what a Pod is built of (`builder.py`). Nothing
here decides what follows. It imports no other package of reconcilers/; all others import it.
"""
