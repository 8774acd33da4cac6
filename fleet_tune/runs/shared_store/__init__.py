"""The record store that several runs share: look-up before a run, exchange during it, upload after it, and upkeep."""
