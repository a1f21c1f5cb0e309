"""Roles of the Hopper kernel."""
