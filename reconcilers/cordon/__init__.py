"""Nodes taken out of service, and put back."""
