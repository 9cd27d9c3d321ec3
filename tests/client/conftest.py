from tests.cli.conftest import dlr, patient_requests, server

__all__ = ["dlr", "patient_requests", "server"]
