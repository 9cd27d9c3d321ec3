"""What every reconciler here is written with."""
