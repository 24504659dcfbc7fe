"""The members of a job: how workers join, what the lead knows of them, and how they leave."""
