"""`dlr dashboard`: a page about jobs, served on this machine alone, with the rights of its user.

`fleet`, `job_page` and `ranks` make its content from the cluster's objects, and do no I/O.
`reading` asks the API server, in threads. `feed` does so while somebody looks, `server` serves.
"""
