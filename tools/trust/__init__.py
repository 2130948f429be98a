"""TRUST.md: promises, what tests them, and the kept results (tools/make_trust.py)."""
