"""Growth into free room, what a job used, and the first size of the next job of its name. Pure.

`growth.py` judges extra workers, `usage.py` what more workers add, and keeps `status.usage`;
`profile.py` begins a new job with it (docs/capacity.md). Growth is asked for by scale requests, as what
ScalePlans ask. Above is job; below are scale, goodput and world.
"""
