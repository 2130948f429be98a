"""What all benchmarks share: how to measure on a machine that is not quiet."""
