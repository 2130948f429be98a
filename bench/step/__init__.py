"""The speed of one optimizer step."""
