"""Measures how much longer it takes to save the trained model than to write its bytes."""
