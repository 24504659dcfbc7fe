"""The built-in jobs. Each is a module with `main(worker)` and `DEFAULTS`."""
