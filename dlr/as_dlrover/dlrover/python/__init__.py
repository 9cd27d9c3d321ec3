"""DLRover's package with a sharding client of ours; where DLRover is installed, all else is its own."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
