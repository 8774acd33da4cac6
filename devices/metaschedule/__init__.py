"""MetaSchedule's databases (TVM's ``JSONDatabase``): reading them for transfer and as records, and writing records of
ours to them."""
