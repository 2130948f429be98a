"""Devices: kinds of devices, arrays, and shards of DTensors."""
