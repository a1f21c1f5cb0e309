"""Mutants of the forward kernels: one synchronising instruction removed or weakened at a time."""
