"""Forward attention on a Hopper GPU beside its peers, and a random search for wrong results."""
