"""Predictions of bytes and seconds before a run."""
