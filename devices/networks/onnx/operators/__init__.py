"""Operators of ONNX that TVM's importer lacks or misreads, a module for each family."""
