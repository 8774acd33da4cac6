"""Networks compiled from the best records, checked against their framework, and moved to where users load them."""
