"""Manifests of other operators as ElasticJobs: `dlr convert`. One module a kind; all of it pure."""

from dlr.convert.kinds import Converted, NotConvertible, convert

__all__ = ["Converted", "NotConvertible", "convert"]
