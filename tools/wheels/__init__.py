"""Parts of make_wheels.py."""
