from tests.cli.conftest import dlr, server

__all__ = ["dlr", "server"]
