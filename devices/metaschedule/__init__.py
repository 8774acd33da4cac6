"""MetaSchedule's databases (TVM's ``JSONDatabase``): what they teach, their schedules as ours, and ours as theirs."""
