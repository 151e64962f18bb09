"""Experiments: presets, and the settings that users change in them."""
