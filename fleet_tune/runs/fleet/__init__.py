"""The devices of a fleet file: access to them, their check, and changes of the file during a run."""
