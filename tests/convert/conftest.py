from tests.cli.conftest import dlr

__all__ = ["dlr"]
