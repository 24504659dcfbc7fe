"""Measures what replicas cost, and how long a lost server delays the workers."""
