"""torch elastic's rendezvous, where the ElasticJob's status says who meets whom."""
