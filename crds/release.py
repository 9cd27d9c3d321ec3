"""Name of the release: the single place of its version and of the name that pip installs."""

VERSION = "0.1.0"
"""Version of the distribution, of the image tags and of the chart."""

DISTRIBUTION = "dlr-training"
"""Name of the distribution; `dlr` on PyPI is another project's. Package and command are called `dlr`."""
