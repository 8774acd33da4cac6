"""The devices of a fleet file: access to devices, their check, and changes of the file during a run."""
