"""`fa4 verify`: climbs the ladder of evidence with every kernel variant of the package."""
