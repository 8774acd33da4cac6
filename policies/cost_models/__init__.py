"""Cost models: the protocol that all fulfil, the registry of their names, how they are saved, and the models
themselves."""
