"""Jobs that come with the product. Each is a module with `main(worker)` and its defaults."""
