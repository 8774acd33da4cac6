"""The search of a task: generators, prediction, acquisition, selection, bandits, training, and the methods that put
them together."""
