"""How a job uses the network cards of its hosts: a laboratory of network namespaces (`README.md`)."""
