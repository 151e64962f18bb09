"""Inference: int8 weights, and one call for the next word."""
