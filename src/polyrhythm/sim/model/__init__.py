"""What the simulator assumes about links, machines and data."""
