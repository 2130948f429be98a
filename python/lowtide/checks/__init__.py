"""Checks of values, and errors that are raised at the end of a call."""
