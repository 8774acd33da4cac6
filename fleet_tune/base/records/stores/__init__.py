"""The record store: its file, its writer and readers, and the encoding of records."""
