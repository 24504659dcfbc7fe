"""The simulator: it runs the same machines in virtual time, with modelled links, speeds and faults."""
