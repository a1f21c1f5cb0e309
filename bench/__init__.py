"""Static comparison with other kernels; needs no GPU. `python -m bench`."""
