"""Experiments: presets, and the settings a user gives on top of them."""
