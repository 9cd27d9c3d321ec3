"""`dlr job`: submit, show and delete ElasticJobs. One module per command."""
