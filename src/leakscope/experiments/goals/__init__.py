"""Goals: what an attacker may want to rebuild, one file each."""
