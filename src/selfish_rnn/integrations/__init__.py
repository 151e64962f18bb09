"""Callbacks for other training loops and a hub for models; each module needs the package it supports."""
