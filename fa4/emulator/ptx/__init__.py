"""PTX text to instructions with resolved register names and source locations."""
