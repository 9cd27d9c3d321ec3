"""Counts and resources that change: ScalePlans, and rolling them out."""
