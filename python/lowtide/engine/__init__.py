"""The compiled core of one optimizer, with its groups and parameters."""
