"""Instructions to Python: one function per basic block, straight-line numpy over all lanes."""
