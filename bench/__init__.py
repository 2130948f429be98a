"""Benchmarks: a folder for each scenario."""
