"""Contributions, from their first report to the fold that applies them."""
