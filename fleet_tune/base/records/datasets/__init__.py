"""Sources of learning: datasets and cost-model files."""
