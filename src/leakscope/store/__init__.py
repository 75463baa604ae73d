"""Finished work on disk: content-addressed, write-once, sealed, safe under concurrent writers."""

from leakscope.core.checkpoint import load_checkpoint, save_checkpoint
from leakscope.store.directory import Store
from leakscope.store.entry import Entry
from leakscope.store.sealing import Damaged
from leakscope.store.verify import Problem, verify

__all__ = ["Damaged", "Entry", "Problem", "Store", "load_checkpoint", "save_checkpoint", "verify"]
