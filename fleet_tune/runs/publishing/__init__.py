"""Networks are compiled from the best records, compared with their framework, and moved to where users load them."""
