"""`dlr job`: submit, look at and delete ElasticJobs. One module a command; `report` is what they say."""
