"""The command line. It turns flags into a job, starts the engine and prints the result. All
decisions are made in other packages."""
