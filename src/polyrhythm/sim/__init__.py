"""The second interpreter of the same machines: virtual time, modelled links, speeds and faults."""
