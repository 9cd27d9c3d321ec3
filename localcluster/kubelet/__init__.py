"""Runs Pods as processes of this machine, for every virtual node."""
