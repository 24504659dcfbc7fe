"""Which server holds which slice."""
