"""Features of candidates: the feature table and its views."""
