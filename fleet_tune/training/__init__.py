"""Training data and cost models: collects datasets on a fleet, and trains and rates models from them."""
