"""Weights that stream: the layers of a model on the CPU come from the disk when they compute."""
