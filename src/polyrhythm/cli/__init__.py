"""The command line: thin. It turns flags into a job, starts the engine and prints what came of
it."""
