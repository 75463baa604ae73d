"""Defences: one method, one file."""
