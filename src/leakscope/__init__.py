"""Leakscope: how much of a person's picture can be rebuilt from what a network gives away."""
