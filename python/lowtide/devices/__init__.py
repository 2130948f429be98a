"""Kinds of devices, arrays, and shards of DTensors."""
