"""Budgets: where state may live."""
