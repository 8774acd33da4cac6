"""What is learnt from: datasets and cost-model files."""
