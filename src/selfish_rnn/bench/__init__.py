"""Benchmarks of speed and memory: ``selfish-rnn bench``."""
