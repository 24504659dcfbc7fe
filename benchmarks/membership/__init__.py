"""What slow, dead, silent and joining workers cost the others."""
