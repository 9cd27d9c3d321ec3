"""`dlr dashboard`: a web page about jobs, served only on this machine, with the user's permissions.

`fleet`, `job_page` and `ranks` build its content from the cluster's objects, without I/O. `reading` reads
from the API server, in threads. `feed` repeats that while a page is open, and `server` serves.
"""
