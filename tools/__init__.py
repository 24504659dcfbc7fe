"""What keeps the repository's own files in step."""
