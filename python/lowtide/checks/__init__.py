"""Checks of values, and errors that are told at the end of a call."""
