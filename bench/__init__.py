"""Benchmarks, with a folder for each scenario."""
