"""What replicas cost, and how long a lost server is felt."""
