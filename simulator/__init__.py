"""Simulation of a fleet: faults and times are drawn, decisions are the controller's own
(docs/simulator.md)."""
