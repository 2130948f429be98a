"""Budgets that say where state may live."""
