"""The API server as commands, the SDK and the dashboard talk to it: requests and watches that block."""
