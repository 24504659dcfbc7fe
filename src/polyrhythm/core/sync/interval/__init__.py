"""How long a round of FSP lasts."""
