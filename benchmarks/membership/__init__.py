"""What unequal company costs: slow members, deaths, silence, and joining."""
