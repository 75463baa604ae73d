"""Commands with a file of their own; `cli` lists them."""
