"""The network of a run, lowered for each device class, with its tasks and all that is known of them before a trial."""
