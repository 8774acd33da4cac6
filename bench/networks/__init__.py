"""Networks and single operators that the benchmarks tune."""
