"""The length of FSP's rounds: fixed, or found by measuring."""
