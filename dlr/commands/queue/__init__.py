"""`dlr-queue.pl`: Kaldi's queue.pl, for its scripts as they are (docs/shards.md)."""
