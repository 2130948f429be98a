"""Checks of values, and errors that are held back until the end of a call."""
