"""The version, readable without importing torch or the compiler."""

__version__ = "0.1.0"
