"""The simulator's models of links, machines and data."""
