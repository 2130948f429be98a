"""Lowtide's numeric reports, and its log."""
