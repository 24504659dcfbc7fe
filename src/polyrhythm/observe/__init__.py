"""The journal and what is made of it."""
