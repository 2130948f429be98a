"""Several processes on one machine that talk over a network as slow as you like."""
