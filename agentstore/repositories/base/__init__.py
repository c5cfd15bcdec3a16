"""What all repositories share: operations, steps, sums, and whose rows are whose."""
