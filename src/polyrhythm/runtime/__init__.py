"""Drivers: event -> machine -> effects -> perform. Server and worker nodes."""
