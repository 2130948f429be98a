"""Lowtide's reports in numbers, and its log."""
