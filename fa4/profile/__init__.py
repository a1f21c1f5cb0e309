"""Per-role views of a compiled kernel: static counts from PTX, SASS and the cubin."""
