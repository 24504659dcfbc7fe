"""When contributions are folded and who may proceed: the sync policies."""
