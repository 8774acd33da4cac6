"""A whole run as one pure state machine: events in, commands out (:mod:`policies.runs.state`)."""
