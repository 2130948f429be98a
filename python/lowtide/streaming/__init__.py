"""Weights that stream: a model's layers come from the disk, or from host memory to a device, when they compute."""
