"""Our attention behind the interfaces that existing models call."""
