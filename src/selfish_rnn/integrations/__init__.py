"""Callbacks for other people's training loops, each in a module that needs the package it is for."""
