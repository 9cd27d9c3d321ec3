"""Jobs with replica groups: each group is an ElasticJob that the job owns, as a Deployment owns ReplicaSets.

Each group is reconciled as any other job. Here are the groups that exist, those that train together, and
their job's status.
"""
