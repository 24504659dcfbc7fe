"""Points that are sent from worker to worker (`--migrate full`): their layout, and where they are
kept."""
