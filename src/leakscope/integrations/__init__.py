"""Defences in the training loops of other libraries; each needs an extra of its name."""
