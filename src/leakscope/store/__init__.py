"""Finished work on disk: content-addressed, write-once, safe under concurrent writers."""

from leakscope.store.directory import Entry, Store

__all__ = ["Entry", "Store"]
