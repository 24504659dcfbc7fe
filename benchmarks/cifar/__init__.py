"""CIFAR-10 for the benchmarks on a GPU: its data, its job, and runs of it within a time limit."""
