"""Streams weights: the layers of a model on the CPU come from disk when they compute."""
