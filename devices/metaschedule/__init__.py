"""MetaSchedule's databases (TVM's ``JSONDatabase``): reading them for transfer and as records, and writing them."""
