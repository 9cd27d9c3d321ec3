from tests.cli.conftest import clock, dlr, patient_requests, server

__all__ = ["clock", "dlr", "patient_requests", "server"]
