"""The in-Pod agent: rendezvous, supervision of the training processes, and reports.

It runs inside the user's training image, on any Python ≥ 3.10, and imports only the standard library, torch,
tenacity, urllib3 and pynvml. The injected bundle includes the last three (`dlr.bundle`).
"""
