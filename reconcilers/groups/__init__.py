"""Jobs with replica groups: each group is an ElasticJob that the job owns, as a Deployment owns ReplicaSets.

Everything within a group is decided where that of any job is. Here: which groups there are, which of them
train together, and what their job's status says.
"""
