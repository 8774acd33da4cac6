"""Operators of torch that TVM's importer lacks or misreads, a module for each family."""
