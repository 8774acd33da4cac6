"""What a model sees of a candidate: the feature table and its views."""
