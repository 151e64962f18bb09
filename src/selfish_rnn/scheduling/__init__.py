"""Scheduling of many runs, several at a time."""
