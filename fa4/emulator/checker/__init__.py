"""Happens-before over what a kernel does to memory: `session(check=True)`.

Vector clocks (clocks.py) say what each warp knows to be over; shadow memories (shadow.py) say who
has touched each word of shared and global memory and each piece of tensor memory. An access that is
not ordered behind a conflicting one is a race, whatever order the emulator ran them in. Orderings
come from barriers (barrier_checks.py), fences (fence_checks.py), completions of engines and the
groups that wait for them (copy_checks.py, tensor_checks.py), atomics and acquire-release accesses
(location_checks.py), and from program order within one warp and one proxy. What crosses from the
generic to the async proxy needs a fence on the way when it is a write; a read that an engine
overwrites, or a completion that a wait has seen, needs none. findings.py and naming.py word it.

One warp is one thread here: order among the lanes of a warp (bar.warp.sync) is not checked.
"""
