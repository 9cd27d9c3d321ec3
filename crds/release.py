"""What this release is called: the one place of its version, and of the name that pip installs it by."""

VERSION = "0.1.0"
"""Version of the distribution, the images' tags and the chart."""

DISTRIBUTION = "dlr-training"
"""Name of the distribution; `dlr` on PyPI is another project's. Package and command are called `dlr`."""
