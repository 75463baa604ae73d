"""Metrics: how near a reconstruction comes to the truth, how useful the target is, how spread its features are."""
