"""Other people's training loops, and places to share models: each in a module that needs the package it is for."""
