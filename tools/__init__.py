"""Programs that check this repository or make some of its files."""
