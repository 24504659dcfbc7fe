"""Sync policies: when contributions are folded, and which workers may go on."""
