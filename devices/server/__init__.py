"""The server on a device: its session processes, the functions that they offer, its registration at a tracker."""
