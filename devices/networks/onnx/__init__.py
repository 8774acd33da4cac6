"""ONNX files as Relax modules."""
