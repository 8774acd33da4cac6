"""The place of a run in a cluster: nodes for its builders and devices, heartbeats of its processes, and turns on
devices that several runs share."""
