"""What saving the trained model costs, beside writing its bytes."""
